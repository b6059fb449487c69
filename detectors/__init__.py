"""Pure rules: a Snapshot in, findings out. A rule that cannot tell abstains and says why."""

from __future__ import annotations

from typing import Final

from detectors import rank_silent, store_skew, straggler_rank
from detectors.rule import Rule

# A cause before what follows from it: findings on one rank are shown in this order.
ALL_RULES: Final[tuple[Rule, ...]] = (
    rank_silent.RULE,
    store_skew.RULE,
    straggler_rank.RULE,
)

__all__ = ["ALL_RULES", "Rule"]
