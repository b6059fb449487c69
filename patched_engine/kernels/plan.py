"""Choose the activation kernel's grid from what the host knows, since the row count is on the card.

The number of valid rows is never read back: the grid follows the host's estimate, and a stride
over the spans makes any grid correct. It grows with the square root of the work: an estimate that
is 8 times off moves it by less than 3, and both bounds keep the rest cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from patched_engine.kernels.spec import GROUP, check_intermediate, check_tile

# Measured on an H200 (docs/activation_kernel.md): 30 CTAs a multiprocessor at 8192 tokens keep
# both that shape and an all-remote call (0.6 ns of launch for each idle CTA) inside their limits.
CTAS_PER_SM_PER_ROOT_SPAN = 0.333
MIN_CTAS_PER_SM = 16
MAX_CTAS_PER_SM = 128
WARPS_PER_SM = 64
REGISTERS_PER_SM = 65536
# Of a large grid a half walks: a quarter takes 115 us where a half takes 103 (65,536 tokens).
WALKING_SHARE = 0.5


@dataclass(frozen=True)
class LaunchShape:
    """One CTA: ``parts`` times ``rows`` x 128 outputs a span, ``warps``, a register cap or None."""

    rows: int
    warps: int
    parts: int
    registers: int | None

    @property
    def resident_per_sm(self) -> int:
        """CTAs that one multiprocessor holds at once; uncapped, the kernel takes 48 registers."""
        by_registers = REGISTERS_PER_SM // ((self.registers or 48) * 32 * self.warps)
        return min(WARPS_PER_SM // self.warps, by_registers)


@dataclass(frozen=True)
class LaunchPlan:
    """``programs`` CTAs for each of ``blocks`` columns, of which ``walkers`` take several spans."""

    shape: LaunchShape
    blocks: int
    programs: int
    walkers: int

    @property
    def grid(self) -> int:
        """CTAs in all."""
        return self.blocks * self.programs


def estimate_local_rows(tokens: int, top_k: int, local_experts: int, experts: int) -> int:
    """Expected valid rows on this rank when routing is even: T * top_k * local / E, rounded up."""
    if tokens < 0 or top_k < 1 or not 0 < local_experts <= experts:
        raise ValueError(
            f"tokens {tokens}, top_k {top_k}, local_experts {local_experts}, experts {experts}: "
            "tokens must be >= 0, top_k >= 1 and 0 < local_experts <= experts"
        )
    return -(-tokens * top_k * local_experts // experts)


def plan_shape(tile: int, fp8_input: bool = True, controls: bool = False) -> LaunchShape:
    """The CTA for rows padded to ``tile``. Raises KernelInputError for a tile no kernel takes.

    32 registers let 64 warps share a multiprocessor. Only bf16 rows with the OAI controls would
    spill at 32. FP8 rows with controls go two parts a span: it halves what a span adds to each row.
    """
    check_tile(tile)
    rows, warps = (16, 4) if tile % 16 == 0 else (8, 2)
    parts = 2 if fp8_input and controls and tile % (2 * rows) == 0 else 1
    return LaunchShape(rows, warps, parts, None if controls and not fp8_input else 32)


def plan_launch(
    rows_estimate: int,
    tile: int,
    intermediate: int,
    sm_count: int,
    rows_capacity: int,
    *,
    fp8_input: bool = True,
    controls: bool = False,
) -> LaunchPlan:
    """The launch for about ``rows_estimate`` valid rows in buffers of ``rows_capacity`` rows.

    ``tile`` and ``intermediate`` as in spec (A); ``sm_count``: the card's multiprocessors.
    Raises KernelInputError for a tile or intermediate size that no kernel takes.
    """
    shape = plan_shape(tile, fp8_input, controls)
    check_intermediate(intermediate)
    blocks = intermediate // GROUP
    span = shape.rows * shape.parts
    spans = -(-max(rows_estimate, 1) // span) * blocks
    # A CTA of 2 warps does half of what one of 4 does, so more of them may be wanted.
    per_sm = CTAS_PER_SM_PER_ROOT_SPAN * math.sqrt(spans * 4 / shape.warps)
    bounded = min(max(per_sm, MIN_CTAS_PER_SM), MAX_CTAS_PER_SM)
    programs = max(1, min(round(sm_count * bounded / blocks), rows_capacity // span))
    walkers_per_sm = max(shape.resident_per_sm, bounded * WALKING_SHARE)
    return LaunchPlan(shape, blocks, programs, max(1, round(sm_count * walkers_per_sm / blocks)))
