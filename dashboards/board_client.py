"""Client: what the engine's cache client waits for, loses and has patched."""

from __future__ import annotations

from typing import Final

from dashboards.model import Board, Healthy, Panel, Row, Target
from dashboards.promql import ENGINE, RANK, by, pick, rate, total
from dashboards.variables import ENGINE_VARIABLES
from dashboards.variables import RANK as RANK_VARIABLE
from detectors import thresholds
from exporters import catalog

_PAGE: Final = catalog.PAGE_COUNTERS
_RANK: Final = "engine, role, rank"
_LEGEND: Final = "{{engine}} {{role}} {{rank}}"
_NONE_SECONDS: Final = 3.0


def _counted(name: str) -> Target:
    return Target(total(_RANK, rate(_PAGE[name], RANK)), _LEGEND)


_PENDING: Final = Row(
    "Pending operations",
    (
        Panel(
            "Age of the oldest",
            (
                Target(
                    by("max", f"{_RANK}, kind", pick(catalog.PENDING_AGE, RANK)),
                    f"{{{{kind}}}} {_LEGEND}",
                ),
            ),
            "s",
            "How long the oldest operation has been waiting for its answer.",
            "absent or short. A line that climbs by one second a second is an answer that will "
            f"never come: {thresholds.STUCK_TIMEOUTS:g} times the timeout is stuck.",
            healthy=Healthy(high=_NONE_SECONDS, absent=True),
            moves_in=("lost-completion", "missing-key", "frozen-shard"),
            low=0,
            runbooks=("stuck-lookup", "wedged-connection"),
            no_value="nothing pends",
        ),
        Panel(
            "How many",
            (
                Target(
                    total(f"{_RANK}, kind", pick(catalog.PENDING, RANK)) + " > 0",
                    f"{{{{kind}}}} {_LEGEND}",
                ),
            ),
            "short",
            "Operations submitted and not completed, by kind.",
            "few, and coming and going.",
            still="what is healthy depends on the traffic",
            low=0,
            no_value="nothing pends",
        ),
    ),
)

_FAILED: Final = Row(
    "Misses and timeouts",
    (
        Panel(
            "Lookups that timed out",
            (_counted("lookup_timeouts"),),
            "ops",
            "Lookups that waited out their whole timeout; each request pays it, and recomputes.",
            "0.",
            healthy=Healthy(high=0),
            moves_in=("lost-completion",),
            low=0,
            runbooks=("lookup-timeouts", "stuck-lookup"),
        ),
        Panel(
            "Client calls that failed",
            (_counted("client_failed_calls"),),
            "ops",
            "Batched calls that raised or timed out.",
            "0.",
            healthy=Healthy(high=0),
            moves_in=("dead-shard",),
            low=0,
            runbooks=("shard-down", "wedged-connection"),
        ),
        Panel(
            "Keys of GETs that brought nothing",
            (_counted("client_get_failed_keys"),),
            "ops",
            "Chunks that a lookup had found and a load did not get.",
            "0: else chunks are evicted between lookup and load.",
            healthy=Healthy(high=0),
            still="the lab's stock client counts none: its call fails as a whole, or hangs",
            low=0,
            runbooks=("evicted-before-load",),
        ),
        Panel(
            "Loads that brought less than was found",
            (_counted("load_short_calls"),),
            "ops",
            "Retrieves that ended short of what the lookup before them had promised: the rest is "
            "recomputed.",
            "0, or an eviction now and then.",
            still="the lab's stock client waits instead of coming back short",
            low=0,
            runbooks=("evicted-before-load",),
        ),
        Panel(
            "Prefetches that came too late",
            (_counted("prefetch_late_calls"),),
            "ops",
            "Prefetches that ended after their lookup had timed out: the request recomputed, and "
            "what it waited for was loaded for nobody.",
            "0. In the post 49% of the requests were so.",
            still="only asynchronous loading prefetches, and the lab's panels run is synchronous",
            low=0,
            runbooks=("async-give-up",),
        ),
        Panel(
            "Bytes prefetched for nobody",
            (_counted("load_wasted_bytes"),),
            "Bps",
            "Bytes that a prefetch brought from the shards and no request used.",
            "near 0.",
            still="only the sharded store counts it",
            low=0,
        ),
    ),
)

_OWN: Final = Row(
    "Patches and our own hooks",
    (
        Panel(
            "Patches",
            (Target("count by (engine, patch, state) (" + pick(catalog.PATCH_INFO, RANK) + ")"),),
            "short",
            "How many processes of an engine have each patch in which state: applied, not_needed, "
            "refused (another version of LMCache), waiting, or off.",
            "applied or not_needed, in all processes alike.",
            kind="table",
            width=12,
            still="a fact of the deployment, not a measure",
            no_value="no engine is patched",
        ),
        Panel(
            "Known lines of the engine's log",
            (
                Target(
                    total("engine, kind", rate(catalog.LOG_LINES, ENGINE)) + " > 0",
                    "{{engine}} {{kind}}",
                ),
            ),
            "ops",
            "Lines of LMCache and vLLM that say a fault, counted by kind as they are logged.",
            "none.",
            still="stock LMCache logs some of them in health too",
            low=0,
            runbooks=("refcount-error", "degraded-engine"),
            no_value="none was logged",
        ),
        Panel(
            "Lost to our own hooks",
            (
                Target(total(_RANK, rate(_PAGE["hook_faults"], RANK)), f"faults {_LEGEND}"),
                Target(total(_RANK, rate(_PAGE["ring_drops"], RANK)), f"ring full {_LEGEND}"),
                Target(total(_RANK, rate(_PAGE["pending_drops"], RANK)), f"table full {_LEGEND}"),
                Target(total(_RANK, rate(catalog.TORN_RECORDS, RANK)), f"torn {_LEGEND}"),
            ),
            "ops",
            "Errors inside the hooks, which the engine never sees, and events that found no room.",
            "0: all is recorded.",
            healthy=Healthy(high=1),
            still="no incident of the lab breaks a hook",
            low=0,
        ),
    ),
)

CLIENT_BOARD: Final = Board(
    uid="stallscope-client",
    title="Stallscope / Client",
    description="The engine's cache client: pending operations, misses, timeouts and patches.",
    variables=(*ENGINE_VARIABLES, RANK_VARIABLE),
    rows=(_PENDING, _FAILED, _OWN),
)
