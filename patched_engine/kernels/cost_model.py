"""What the activation must cost, for the finding ``kernel-waste``: bytes, floor and idle CTAs.

Pure arithmetic on the deployment's shape; standard library only. Source: post, Bottleneck 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from patched_engine.kernels.plan import estimate_local_rows
from patched_engine.kernels.spec import GROUP, bytes_per_valid_row, check_intermediate


@dataclass(frozen=True)
class ActivationCost:
    """One call of the activation on one rank."""

    valid_rows: int
    bytes_per_valid_row: int
    moved_bytes: int
    floor_seconds: float
    slot_grid_ctas: int
    idle_cta_share: float

    def bandwidth_share(self, measured_seconds: float) -> float:
        """The share of the bandwidth that a call of ``measured_seconds`` reached (1 = the floor).

        Raises ValueError unless the time is positive.
        """
        if not measured_seconds > 0:
            raise ValueError(f"measured_seconds is {measured_seconds}; it must be positive")
        return self.floor_seconds / measured_seconds

    def wasted_seconds(self, measured_seconds: float) -> float:
        """Seconds of a call above its floor, at least 0."""
        return max(0.0, measured_seconds - self.floor_seconds)


def activation_cost(
    *,
    tokens: int,
    top_k: int,
    experts: int,
    local_experts: int,
    intermediate: int,
    bandwidth_bytes_per_second: float,
    valid_rows: int | None = None,
    input_bytes_per_element: int = 1,
    tokens_per_cta: int = 1,
) -> ActivationCost:
    """The cost of one activation call over an all-gathered batch of ``tokens`` tokens.

    ``valid_rows``: rows routed to this rank, estimated from even routing when None.
    ``bandwidth_bytes_per_second``: what the card delivers, read plus written.
    ``tokens_per_cta``: tokens that one CTA of the per-slot grid covers (the post's launch has 1,
    FlashInfer's later ones up to 4). Its idle share is the chance that none of them is local:
    (1 - share of rows that are local) ** tokens_per_cta.
    Raises ValueError for a shape or a rate that cannot be.
    """
    check_intermediate(intermediate)
    rows = estimate_local_rows(tokens, top_k, local_experts, experts)
    if valid_rows is not None:
        rows = valid_rows
    slots = tokens * top_k
    if not 0 <= rows <= slots:
        raise ValueError(f"valid_rows is {rows}; it must be between 0 and tokens * top_k = {slots}")
    if not bandwidth_bytes_per_second > 0:
        raise ValueError(
            f"bandwidth_bytes_per_second is {bandwidth_bytes_per_second}; it must be positive"
        )
    if tokens_per_cta < 1:
        raise ValueError(f"tokens_per_cta is {tokens_per_cta}; it must be at least 1")
    row_bytes = bytes_per_valid_row(intermediate, input_bytes_per_element)
    local_share = rows / slots if slots else 0.0
    return ActivationCost(
        valid_rows=rows,
        bytes_per_valid_row=row_bytes,
        moved_bytes=rows * row_bytes,
        floor_seconds=rows * row_bytes / bandwidth_bytes_per_second,
        slot_grid_ctas=-(-tokens // tokens_per_cta) * top_k * (intermediate // GROUP),
        idle_cta_share=(1.0 - local_share) ** tokens_per_cta if slots else 0.0,
    )
