"""Pod in lockstep: what each rank of an engine does while the others wait."""

from __future__ import annotations

from typing import Final

from dashboards.model import Board, Healthy, Panel, Row, Target
from dashboards.promql import ENGINE, RANK, WORKER, by, pick, rate, total
from dashboards.variables import ENGINE_VARIABLES
from dashboards.variables import RANK as RANK_VARIABLE
from detectors import thresholds
from exporters import catalog

_RANK: Final = "engine, rank"
_FINDING: Final = "engine, finding, severity, rank, shard"
_LEGEND: Final = "{{engine}} rank {{rank}}"
_WAIT_SECONDS: Final = 0.1
_CHARGED_SECONDS: Final = 0.2
# Where one rank is last at most of the collectives, it is no chance.
_LAST_SHARE: Final = thresholds.STRAGGLER_LAST_SHARE
_PAGE: Final = catalog.PAGE_COUNTERS
_CAUSE_SHARE: Final = 0.05


def _by_rank(metric: catalog.Metric) -> str:
    """The rate of a worker's counter. The scheduler's page has the same ones, and no rank."""
    return total(_RANK, rate(metric, RANK, WORKER if "role" in metric.labels else ""))


def _share(part: str, whole: str) -> str:
    """A rank's part of its engine's whole; absent where there is none."""
    return f"{part} / on (engine) group_left () ({whole} > 0)"


_WAIT: Final = Row(
    "Who waits for whom",
    (
        Panel(
            "Wait in collectives, by the rank that waits",
            (Target(_by_rank(catalog.COLLECTIVE_WAIT), _LEGEND),),
            "percentunit",
            "The share of its time that a rank spends in collectives for the last one to come. The "
            "late rank is the one that waits least.",
            f"all ranks alike, and below {_WAIT_SECONDS:.0%}.",
            healthy=Healthy(high=_WAIT_SECONDS),
            moves_in=("slow-rank", "rank0-store"),
            low=0,
            runbooks=("straggler-rank", "store-skew"),
        ),
        Panel(
            "Wait charged to the rank that came last",
            (Target(_by_rank(catalog.COLLECTIVE_CHARGED), _LEGEND),),
            "s",
            "Rank-seconds that the others waited for a rank, each second.",
            "no rank far above the others.",
            healthy=Healthy(high=_CHARGED_SECONDS),
            moves_in=("slow-rank", "rank0-store"),
            low=0,
            runbooks=("straggler-rank",),
        ),
        Panel(
            "How often a rank comes last",
            (
                Target(
                    _share(
                        _by_rank(catalog.COLLECTIVE_LAST),
                        total("engine", rate(catalog.COLLECTIVES_JOINED, ENGINE)),
                    ),
                    _LEGEND,
                ),
            ),
            "percentunit",
            "The share of an engine's collectives to which a rank came last; by chance each is "
            "last in 1/W of them.",
            f"below {_LAST_SHARE:.0%} with three or more ranks.",
            healthy=Healthy(high=_LAST_SHARE),
            moves_in=("slow-rank",),
            low=0,
            high=1,
            runbooks=("straggler-rank",),
            no_value="no collective ended",
        ),
        Panel(
            "Collectives that stand open",
            (
                Target(
                    by("max", "engine, op, rank", pick(catalog.COLLECTIVE_OPEN, RANK)),
                    "{{engine}} {{op}}, missing rank {{rank}}",
                ),
            ),
            "s",
            "The longest collective that some ranks are in and the named one is not.",
            f"absent or a blink; from {thresholds.MISSING_WAIT_SECONDS:g} s on, a rank is missing.",
            healthy=Healthy(high=thresholds.MISSING_WAIT_SECONDS, absent=True),
            moves_in=("missing-key",),
            low=0,
            runbooks=("rank-silent",),
            no_value="none is open",
        ),
    ),
)

_BYTES: Final = Row(
    "Stores and loads",
    (
        Panel(
            "Bytes stored by rank",
            (Target(_by_rank(_PAGE["store_bytes"]), _LEGEND),),
            "Bps",
            "What each rank copies from its GPU to L1.",
            "all ranks alike. One rank alone is LMCache's default for MLA models.",
            still="what is healthy depends on the traffic; the share beside it does not",
            low=0,
            runbooks=("store-skew",),
        ),
        Panel(
            "Bytes stored, against the ranks' mean",
            (
                Target(
                    _share(
                        _by_rank(_PAGE["store_bytes"]),
                        by("avg", "engine", _by_rank(_PAGE["store_bytes"])),
                    ),
                    _LEGEND,
                ),
            ),
            "short",
            "1 is as much as the others store; W is a rank that stores for all.",
            f"1; store-skew is named above {thresholds.SKEW_RATIO:g}.",
            healthy=Healthy(high=thresholds.SKEW_RATIO),
            moves_in=("rank0-store",),
            low=0,
            runbooks=("store-skew",),
            no_value="nothing was stored",
        ),
        Panel(
            "Bytes loaded by rank and tier",
            (
                Target(
                    total(f"{_RANK}, tier", rate(catalog.LOAD_BYTES, RANK, WORKER)),
                    f"{_LEGEND} {{{{tier}}}}",
                ),
            ),
            "Bps",
            "What each rank brings to its GPU, from L1 (the pod's memory) and L2 (the shards).",
            "all ranks alike, from both tiers.",
            still="what is healthy depends on the traffic",
            low=0,
        ),
        Panel(
            "Time in stores and loads",
            (
                Target(_by_rank(_PAGE["store_nanoseconds"]), f"store {_LEGEND}"),
                Target(_by_rank(_PAGE["load_nanoseconds"]), f"load {_LEGEND}"),
            ),
            "percentunit",
            "The share of its time that a rank spends inside LMCache's store and retrieve.",
            "all ranks alike; a synchronous load stops all ranks.",
            still="what is healthy depends on the traffic",
            low=0,
        ),
    ),
)

_STEPS: Final = Row(
    "Steps, findings and causes of lateness",
    (
        Panel(
            "Time in steps",
            (Target(_by_rank(_PAGE["step_nanoseconds"]), _LEGEND),),
            "percentunit",
            "The share of its time that a rank spends in engine steps: 100% is an engine with no "
            "pause between them.",
            "all ranks alike, below 100%.",
            still="no incident of the lab fills an engine",
            low=0,
        ),
        Panel(
            "Oldest pending operation",
            (
                Target(
                    by("max", f"{_RANK}, kind", pick(catalog.PENDING_AGE, RANK)),
                    f"{{{{kind}}}} {_LEGEND}",
                ),
            ),
            "s",
            "The age of the oldest lookup, load or client call that was submitted and is not done.",
            "absent, or well below its timeout (3 s for a lookup).",
            healthy=Healthy(high=3, absent=True),
            moves_in=("lost-completion", "missing-key", "frozen-shard"),
            low=0,
            runbooks=("stuck-lookup", "wedged-connection"),
            no_value="nothing pends",
        ),
        Panel(
            "Findings over time",
            (
                Target(
                    by("max", _FINDING, pick(catalog.FINDING, RANK)),
                    "{{finding}} {{rank}}{{shard}}",
                ),
            ),
            "short",
            "What the exporter named, and from when to when.",
            "empty.",
            kind="state-timeline",
            healthy=Healthy(absent=True),
            moves_in=("slow-rank", "rank0-store", "lost-completion"),
            no_value="nothing was found",
        ),
        Panel(
            "Time that the machine took from a rank",
            (
                Target(_by_rank(_PAGE["throttled_nanoseconds"]), f"CPU quota {_LEGEND}"),
                Target(_by_rank(_PAGE["runqueue_nanoseconds"]), f"run queue {_LEGEND}"),
                Target(_by_rank(_PAGE["gc_nanoseconds"]), f"garbage collection {_LEGEND}"),
            ),
            "percentunit",
            "Why a rank may be late without doing more: held by its container's CPU quota, ready "
            "with no CPU to run on, or collecting garbage.",
            f"near 0; above {_CAUSE_SHARE:.0%} on one rank alone it explains a straggler.",
            still="the lab's slow rank computes longer; nobody takes its CPU",
            low=0,
            runbooks=("cpu-throttled",),
        ),
    ),
)

POD_BOARD: Final = Board(
    uid="stallscope-pod",
    title="Stallscope / Pod in lockstep",
    description="One engine, rank by rank: who waits, who is late, and with what.",
    variables=(*ENGINE_VARIABLES, RANK_VARIABLE),
    rows=(_WAIT, _BYTES, _STEPS),
)
