"""Choose the activation kernel's grid from what the host knows, since the row count is on the card.

The number of valid rows is never read back: the grid follows the host's estimate, and a
grid-stride loop makes any grid correct. The bounds keep a wrong estimate cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

from patched_engine.kernels.spec import GROUP, check_intermediate, check_tile


@dataclass(frozen=True)
class LaunchPlan:
    """How to launch spec (A): ``rows`` x 128 outputs an item, ``warps`` a CTA, ``grid`` CTAs."""

    rows: int
    warps: int
    grid: int


# Items a CTA should get when the estimate is right; more CTAs cost 0.6 ns of launch each.
ITEMS_PER_CTA = 4
# CTAs a multiprocessor should have at least, to keep enough loads in flight if rows were
# underestimated; and at most, to bound the launch cost if they were overestimated.
MIN_CTAS_PER_SM = 16
MAX_CTAS_PER_SM = 64


def estimate_local_rows(tokens: int, top_k: int, local_experts: int, experts: int) -> int:
    """Expected valid rows on this rank when routing is even: T * top_k * local / E, rounded up."""
    if tokens < 0 or top_k < 1 or not 0 < local_experts <= experts:
        raise ValueError(
            f"tokens {tokens}, top_k {top_k}, local_experts {local_experts}, experts {experts}: "
            "tokens must be >= 0, top_k >= 1 and 0 < local_experts <= experts"
        )
    return -(-tokens * top_k * local_experts // experts)


def plan_launch(
    rows_estimate: int, tile: int, intermediate: int, sm_count: int, rows_capacity: int
) -> LaunchPlan:
    """The launch for about ``rows_estimate`` valid rows in buffers of ``rows_capacity`` rows.

    ``tile`` and ``intermediate`` as in spec (A); ``sm_count``: the card's multiprocessors.
    Raises KernelInputError for a tile or intermediate size that no kernel takes.
    """
    check_tile(tile)
    check_intermediate(intermediate)
    rows, warps = 8, 2
    column_blocks = intermediate // GROUP
    items = -(-max(rows_estimate, 1) // rows) * column_blocks
    most_items = max(rows_capacity // rows, 1) * column_blocks
    wanted = -(-items // ITEMS_PER_CTA)
    bounded = min(max(wanted, sm_count * MIN_CTAS_PER_SM), sm_count * MAX_CTAS_PER_SM)
    return LaunchPlan(rows=rows, warps=warps, grid=max(1, min(bounded, most_items)))
