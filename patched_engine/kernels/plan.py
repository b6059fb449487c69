"""Choose the activation kernel's grid from what the host knows, since the row count is on the card.

The number of valid rows is never read back: the grid follows the host's estimate, and a
grid-stride loop makes any grid correct. It grows with the square root of the work: an estimate
that is 8 times off moves it by less than 3, and both bounds keep the rest cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from patched_engine.kernels.spec import GROUP, check_intermediate, check_tile

# Measured on an H200 (docs/activation_kernel.md): 28 CTAs a multiprocessor at 8192 tokens keep
# both that shape and an all-remote call (0.6 ns of launch for each idle CTA) inside their limits.
CTAS_PER_SM_PER_ROOT_ITEM = 0.31
MIN_CTAS_PER_SM = 16
MAX_CTAS_PER_SM = 128


@dataclass(frozen=True)
class LaunchPlan:
    """How to launch spec (A): ``rows`` x 128 outputs an item, ``warps`` a CTA, ``grid`` CTAs."""

    rows: int
    warps: int
    grid: int


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
    rows, warps = (16, 4) if tile % 16 == 0 else (8, 2)
    column_blocks = intermediate // GROUP
    items = -(-max(rows_estimate, 1) // rows) * column_blocks
    most_items = max(rows_capacity // rows, 1) * column_blocks
    # An item of 8 rows is half a CTA's work of 16, so twice as many may be wanted.
    per_sm = CTAS_PER_SM_PER_ROOT_ITEM * (16 / rows) * math.sqrt(items * rows / 16)
    bounded = min(max(per_sm, MIN_CTAS_PER_SM), MAX_CTAS_PER_SM)
    return LaunchPlan(rows, warps, max(1, min(int(sm_count * bounded), most_items)))
