"""Cache tier: whether the shards keep up, and whether a hit is worth taking."""

from __future__ import annotations

from typing import Final

from dashboards import recording
from dashboards.model import Board, Healthy, Panel, Row, Target
from dashboards.promql import ENGINE, SHARD, by, equals, pick, rate, total
from dashboards.variables import ENGINE_VARIABLES
from dashboards.variables import SHARD as SHARD_VARIABLE
from detectors import thresholds
from exporters import catalog

_PAGE: Final = catalog.PAGE_COUNTERS
_FIGURES: Final = catalog.SHARD_FIGURES
_COMMANDS: Final = catalog.SHARD_COMMAND_FIGURES
_SEEN_BY: Final = "cluster, namespace, instance, shard"


def _bound(name: str) -> Target:
    chosen = pick(catalog.SHARD_SATURATION, equals("bound", name), SHARD)
    return Target(by("max", "shard", chosen), f"{{{{shard}}}} {name}")


_SATURATION: Final = Row(
    "Saturation",
    (
        Panel(
            "Main thread busy, between its bounds",
            (_bound("lower"), _bound("upper")),
            "percentunit",
            "The share of the last 10 s in which a shard's one main thread had work. Where the "
            "server cannot say it exactly, the truth lies between lower and upper.",
            f"below {thresholds.SATURATED_SHARE:.0%}; only the lower bound proves saturation.",
            healthy=Healthy(high=thresholds.SATURATED_SHARE),
            moves_in=("busy-shard",),
            low=0,
            high=1,
            runbooks=("shard-saturated",),
        ),
        Panel(
            "What saturation rests on",
            (
                Target(
                    by(
                        "max",
                        "shard, version, role, basis",
                        pick(catalog.SHARD_INFO, SHARD)
                        + f" * on ({_SEEN_BY}) group_left (basis) "
                        + pick(catalog.SHARD_SATURATION_INFO, SHARD),
                    )
                ),
            ),
            "short",
            "The server's version and the figures that its saturation comes from.",
            "active_time, which says it exactly (Valkey 9.1 and later).",
            kind="table",
            still="a fact of the server, not a measure",
            hidden=("Value",),
        ),
        Panel(
            "Time in commands, as the post counted it",
            (Target(by("max", "shard", pick(catalog.SHARD_COMMAND_SHARE, SHARD)), "{{shard}}"),),
            "percentunit",
            "The share of time inside commands. It leaves out the replies, so it is not the "
            "saturation: it may read 0 on a saturated shard.",
            "no more than a comparison with older figures.",
            still="it is no measure of saturation",
            low=0,
        ),
        Panel(
            "Commands",
            (
                Target(
                    total("shard, command", rate(_COMMANDS["calls"], SHARD)),
                    "{{shard}} {{command}}",
                ),
            ),
            "ops",
            "Commands run by each shard.",
            "all shards alike; exists comes from lookups, get from loads, set from stores.",
            still="what is healthy depends on the traffic",
            low=0,
        ),
    ),
)

_WORTH: Final = Row(
    "Is a hit worth taking",
    (
        Panel(
            "Bandwidth of loads against B*",
            (
                Target(pick(recording.LOAD_BANDWIDTH, ENGINE), "{{engine}}"),
                Target(pick(recording.BREAK_EVEN, ENGINE), "{{engine}} B*"),
            ),
            "Bps",
            "Bytes loaded, by all ranks together, for each second that the slowest rank spent "
            "loading; and B* = s x R, the KV bytes of a token times the tokens a second that the "
            "engine prefills (2.6 GB/s for GLM-5.3 in FP8 on B300).",
            "above B*: below it a hit is slower than computing.",
            still="the lab's chunks are small, and its B* is as low",
            low=0,
            runbooks=("below-break-even",),
        ),
        Panel(
            "Where loaded bytes come from",
            (Target(pick(recording.LOAD_RATE, ENGINE), "{{engine}} {{tier}}"),),
            "Bps",
            "Bytes loaded by tier: L1 is the pod's memory, L2 the shards.",
            "mostly what your working set fits in.",
            still="what is healthy depends on the traffic",
            low=0,
            stacked=True,
        ),
        Panel(
            "Tokens found by lookups",
            (Target(pick(recording.HIT_RATIO, ENGINE), "{{engine}}"),),
            "percentunit",
            "The share of looked-up tokens that the cache had.",
            "the share of your prompts that repeats; a fall to 0 is a cache that nobody reaches.",
            still="what is healthy depends on the traffic",
            low=0,
            high=1,
        ),
        Panel(
            "Requests by where their prefix came from",
            (
                Target(
                    total("engine, source", rate(catalog.REQUEST_HITS, ENGINE)),
                    "{{engine}} {{source}}",
                ),
            ),
            "reqps",
            "Prompts that are done, by the source of most of their cached tokens: the engine's own "
            "prefix cache, external (LMCache), or none.",
            "the mix of your traffic; external gone while shards are up is a cache nobody reaches.",
            still="what is healthy depends on the traffic",
            low=0,
            stacked=True,
        ),
        Panel(
            "Chunks lost behind the rank that cuts the prefix",
            (
                Target(
                    total("engine, rank", rate(catalog.PREFIX_LOST, ENGINE)),
                    "{{engine}} rank {{rank}}",
                ),
            ),
            "short",
            "Chunks a second that all other ranks hold and nobody can use, since this rank lacks "
            "one before them: its shard is cold, or evicts more than the others.",
            "0 on every rank.",
            healthy=Healthy(high=0),
            moves_in=("lost-keys",),
            low=0,
            runbooks=("orphaned-chunks", "cold-shard"),
        ),
        Panel(
            "Time of a command on the main thread, p99",
            (
                Target(
                    by(
                        "max",
                        "shard, command",
                        pick(catalog.SHARD_LATENCY, equals("percentile", "99"), SHARD),
                    ),
                    "{{shard}} {{command}}",
                ),
            ),
            "s",
            "99 of 100 commands since the server's start took at most this long.",
            "below 20 ms for chunks of 12.4 MB.",
            healthy=Healthy(high=0.5),
            still="no incident of the lab slows a command",
            low=0,
        ),
    ),
)

_MEMORY: Final = Row(
    "Memory and keys",
    (
        Panel(
            "Memory used, of what is allowed",
            (
                Target(
                    by("max", "shard", pick(_FIGURES["used_memory"], SHARD))
                    + " / "
                    + "("
                    + by("max", "shard", pick(_FIGURES["maxmemory"], SHARD))
                    + " > 0)",
                    "{{shard}}",
                ),
            ),
            "percentunit",
            "How full each shard is. From 100% on it evicts.",
            "any level is well; evictions between lookup and load are not.",
            still="a full cache is healthy",
            low=0,
            runbooks=("evicted-before-load",),
        ),
        Panel(
            "Keys evicted",
            (Target(total("shard", rate(_FIGURES["evicted_keys"], SHARD)), "{{shard}}"),),
            "ops",
            "Chunks dropped for memory.",
            "0, or no more than is stored.",
            still="a full cache evicts what it must",
            low=0,
            runbooks=("evicted-before-load",),
        ),
        Panel(
            "Whose chunks a shard holds",
            (
                Target(
                    by("max", "shard, key_rank", pick(catalog.SHARD_RANK_KEYS, SHARD)),
                    "{{shard}} rank {{key_rank}}",
                ),
            ),
            "short",
            "Chunks by the rank in their names, at the last whole scan.",
            "one rank a shard where the store is sharded.",
            still="a fact of the deployment, not a measure",
            low=0,
            runbooks=("shard-skew", "key-namespace-split"),
        ),
        Panel(
            "Reads that missed",
            (Target(total("shard", rate(_FIGURES["keyspace_misses"], SHARD)), "{{shard}}"),),
            "ops",
            "Reads of keys that were not there, lookups of new prompts among them.",
            "no more than new prompts bring.",
            still="what is healthy depends on the traffic",
            low=0,
        ),
        Panel(
            "L1 used, of its size",
            (
                Target(
                    pick(catalog.L1_USED, ENGINE)
                    + " / ("
                    + pick(catalog.L1_CAPACITY, ENGINE)
                    + " > 0)",
                    "{{engine}} rank {{rank}}",
                ),
            ),
            "percentunit",
            "How full each rank's part of the pod's CPU memory is.",
            "any level below 100%; all ranks alike where the store is sharded.",
            still="a full cache is healthy",
            low=0,
        ),
        Panel(
            "Network",
            (
                Target(
                    total("shard", rate(_FIGURES["total_net_output_bytes"], SHARD)), "{{shard}} out"
                ),
                Target(
                    total("shard", rate(_FIGURES["total_net_input_bytes"], SHARD)), "{{shard}} in"
                ),
            ),
            "Bps",
            "Bytes that a shard sends (loads) and receives (stores).",
            "all shards alike. One instance sends 0.8 to 0.9 GB/s at most in the post.",
            still="what is healthy depends on the traffic",
            low=0,
        ),
        Panel(
            "Connections",
            (Target(by("max", "shard", pick(_FIGURES["connected_clients"], SHARD)), "{{shard}}"),),
            "short",
            "Connections to each shard, the exporters' included.",
            "steady: threads of the client x pods.",
            still="what is healthy depends on the deployment",
            low=0,
        ),
    ),
)

CACHE_BOARD: Final = Board(
    uid="stallscope-cache",
    title="Stallscope / Cache tier",
    description="The Valkey shards: saturation, bandwidth, memory, and whose chunks they hold.",
    variables=(*ENGINE_VARIABLES, SHARD_VARIABLE),
    rows=(_SATURATION, _WORTH, _MEMORY),
)
