"""Pure rules: a Snapshot in, findings out. A rule that cannot tell abstains and says why."""

from __future__ import annotations

from typing import Final

from detectors import (
    evicted_before_load,
    load_mismatch,
    lookup_timeouts,
    rank_silent,
    shard_down,
    store_skew,
    straggler_rank,
    stuck_lookup,
    wedged_connection,
)
from detectors.rule import Rule

# A cause before what follows from it, which is how findings are shown: a shard that is down leaves
# every lookup pending; what is evicted wedges a connection, and a rank inside a stuck lookup or a
# wedged load stays away from its collective, which is all that rank-silent sees.
ALL_RULES: Final[tuple[Rule, ...]] = (
    shard_down.RULE,
    load_mismatch.RULE,
    evicted_before_load.RULE,
    wedged_connection.RULE,
    stuck_lookup.RULE,
    rank_silent.RULE,
    store_skew.RULE,
    straggler_rank.RULE,
    lookup_timeouts.RULE,
)

__all__ = ["ALL_RULES", "Rule"]
