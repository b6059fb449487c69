"""Pure rules: a Snapshot in, findings out. A rule that cannot tell abstains and says why."""

from __future__ import annotations

from typing import Final

from detectors import (
    async_give_up,
    below_break_even,
    cold_shard,
    collective_mismatch,
    cpu_throttled,
    engine_dead,
    evicted_before_load,
    half_a_group,
    key_namespace_split,
    load_mismatch,
    logged,
    lookup_timeouts,
    orphaned_chunks,
    progress_stall,
    queue_not_prefill,
    rank_silent,
    rho_rising,
    shard_down,
    shard_saturated,
    shard_skew,
    store_skew,
    straggler_rank,
    stuck_lookup,
    wedged_connection,
)
from detectors.rule import Rule

# A cause before what follows from it, which is how findings are shown: a shard that is down leaves
# every lookup pending; what is evicted wedges a connection, and a rank inside a stuck lookup or a
# wedged load stays away from its collective, which is all that rank-silent sees. A rank without a
# CPU, or that stores for all, is a straggler; and no progress is what follows from most of them.
ALL_RULES: Final[tuple[Rule, ...]] = (
    engine_dead.RULE,
    shard_down.RULE,
    key_namespace_split.RULE,
    cold_shard.RULE,
    shard_saturated.RULE,
    load_mismatch.RULE,
    evicted_before_load.RULE,
    orphaned_chunks.RULE,
    shard_skew.RULE,
    wedged_connection.RULE,
    stuck_lookup.RULE,
    collective_mismatch.RULE,
    logged.WRONG_GROUP_RULE,
    logged.REFCOUNT_RULE,
    logged.DEGRADED_RULE,
    rank_silent.RULE,
    cpu_throttled.RULE,
    store_skew.RULE,
    straggler_rank.RULE,
    async_give_up.RULE,
    lookup_timeouts.RULE,
    logged.HANDOFF_RULE,
    progress_stall.RULE,
    below_break_even.RULE,
    rho_rising.RULE,
    queue_not_prefill.RULE,
    half_a_group.RULE,
)

__all__ = ["ALL_RULES", "Rule"]
