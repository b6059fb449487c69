"""Fleet: who stalls, in which engine, at which rank or shard."""

from __future__ import annotations

from typing import Final

from dashboards import recording
from dashboards.gates import GATES
from dashboards.model import Board, Healthy, Panel, Row, Target
from dashboards.pages import EXPORTER_DOWN, RHO_RISING, TTFT_GATE
from dashboards.promql import ENGINE, FLEET, RANK, SHARD, by, equals, pick, rate, top, total
from dashboards.variables import ENGINE_VARIABLES
from dashboards.variables import RANK as RANK_VARIABLE
from dashboards.variables import SHARD as SHARD_VARIABLE
from detectors import thresholds
from exporters import catalog

_PLACE: Final = "namespace, engine, rank"
_FINDING_LABELS: Final = "cluster, namespace, engine, finding, severity, rank, shard"
_MOST: Final = 10
_CHARGED_SECONDS: Final = 0.2
_TICK_AGE_SECONDS: Final = 5.0
NO_VLLM: Final = "the lab's engines serve no metrics of vLLM"


# Each of the lab's incidents is a finding.
_ALL_INCIDENTS: Final = (
    *("rank0-store", "slow-rank", "lost-completion", "missing-key", "evicted-keys"),
    *("cut-connections", "dead-shard", "frozen-shard", "busy-shard", "restarted-shard"),
    *("lost-keys", "two-seeds"),
)


def _standing(severity: str) -> Target:
    chosen = pick(catalog.FINDING, equals("severity", severity), ENGINE)
    return Target(f"count({chosen} == 1)", severity)


def _not_alive() -> str:
    chosen = pick(catalog.PROCESS_STATE, 'state!="alive"', ENGINE)
    return by("max", f"{_PLACE}, role, state", chosen)


_FINDINGS: Final = Row(
    "Findings",
    (
        Panel(
            "Critical findings",
            (_standing("critical"),),
            "short",
            "How many critical findings stand now.",
            "none.",
            kind="stat",
            width=4,
            height=6,
            healthy=Healthy(absent=True),
            moves_in=("rank0-store", "dead-shard", "frozen-shard", "lost-completion"),
            no_value="none",
        ),
        Panel(
            "Warnings",
            (_standing("warning"),),
            "short",
            "How many findings stand that wake nobody.",
            "none.",
            kind="stat",
            width=4,
            height=6,
            healthy=Healthy(absent=True),
            still="which findings are warnings depends on how much time is lost",
            no_value="none",
        ),
        Panel(
            "What stands, and for how long",
            (Target(by("max", _FINDING_LABELS, pick(catalog.FINDING_SINCE, ENGINE))),),
            "s",
            "Each finding with its rank or shard and its age. `stallscope runbook FINDING` says "
            "what to do.",
            "an empty table.",
            kind="table",
            width=16,
            height=6,
            healthy=Healthy(absent=True),
            moves_in=_ALL_INCIDENTS,
            no_value="nothing stands",
        ),
    ),
)

_STALLS: Final = Row(
    "Who stalls",
    (
        Panel(
            "Time lost to the worst rank",
            (Target(pick(recording.LOST_SHARE, ENGINE), "{{namespace}}/{{engine}}"),),
            "percentunit",
            "The share of an engine's time in which its ranks waited for the one that cost most.",
            f"below {thresholds.LOST_WALL_SHARE:.0%}, the limit of straggler-rank and store-skew.",
            healthy=Healthy(high=thresholds.LOST_WALL_SHARE),
            moves_in=("slow-rank", "rank0-store"),
            low=0,
            runbooks=("straggler-rank", "store-skew"),
        ),
        Panel(
            f"The {_MOST} ranks that others wait for most",
            (
                Target(
                    top(_MOST, total(_PLACE, rate(catalog.COLLECTIVE_CHARGED, RANK))),
                    "{{namespace}}/{{engine}} rank {{rank}}",
                ),
            ),
            "s",
            "Rank-seconds that the other ranks wait for a rank, each second: with 8 ranks at most "
            "7.",
            "no rank far above the others.",
            healthy=Healthy(high=_CHARGED_SECONDS),
            moves_in=("slow-rank", "rank0-store"),
            low=0,
            runbooks=("straggler-rank",),
        ),
        Panel(
            "rho: how busy engines are",
            (Target(pick(recording.RHO, ENGINE), "{{namespace}}/{{engine}}"),),
            "short",
            "lambda x S: prompts that come, times the time in steps that each takes. An engine "
            "does one step at a time: at 1 its queue has no end. Absent while few prompts come.",
            f"below {thresholds.SATURATED_SHARE:g}, and not growing.",
            still="no incident of the lab fills an engine",
            low=0,
            runbooks=(RHO_RISING,),
            no_value="too few prompts to tell",
        ),
        Panel(
            f"The {_MOST} busiest shards",
            (
                Target(
                    top(_MOST, pick(recording.SATURATION, equals("bound", "lower"), SHARD)),
                    "{{shard}}",
                ),
            ),
            "percentunit",
            "The share of the last 10 s in which a shard's main thread was certainly busy.",
            f"below {thresholds.SATURATED_SHARE:.0%}: one thread runs every command.",
            healthy=Healthy(high=thresholds.SATURATED_SHARE),
            moves_in=("busy-shard",),
            runbooks=("shard-saturated",),
            low=0,
            high=1,
        ),
    ),
)

_GATES: Final = Row(
    "Gates on time to first token",
    tuple(
        Panel(
            f"Requests over {gate.limit_seconds:g} s",
            (
                Target(
                    pick(recording.ttft_over(gate.limit_seconds, recording.SHORT_SECONDS), FLEET),
                    "{{model_name}} 5m",
                ),
                Target(
                    pick(recording.ttft_over(gate.limit_seconds, recording.LONG_SECONDS), FLEET),
                    "{{model_name}} 1h",
                ),
            ),
            "percentunit",
            f"The share of requests whose first token took longer than {gate.limit_seconds:g} s.",
            f"at most {gate.allowed_share:.0%}: {gate.name} is within its limit.",
            healthy=Healthy(high=gate.allowed_share),
            still=NO_VLLM,
            low=0,
            high=1,
            runbooks=(TTFT_GATE,),
            no_value="No bucket at this limit, or no vLLM is scraped",
        )
        for gate in GATES
    ),
)

_SOURCES: Final = Row(
    "Sources",
    (
        Panel(
            "Shards",
            (Target(pick(recording.SHARD_UP, SHARD), "{{shard}}"),),
            "bool_yes_no",
            "Whether each cache shard answers those that ask it.",
            "yes throughout.",
            kind="state-timeline",
            width=12,
            height=6,
            healthy=Healthy(low=1),
            moves_in=("dead-shard", "frozen-shard"),
            runbooks=("shard-down",),
        ),
        Panel(
            "Processes that are not alive",
            (
                Target(
                    f"{_not_alive()} == 1",
                    "{{engine}} {{role}} {{rank}} {{state}}",
                ),
            ),
            "short",
            "Engine processes whose page stands still or whose writer is gone.",
            "none.",
            width=6,
            height=6,
            healthy=Healthy(absent=True),
            still="no incident of the lab ends or freezes an engine process",
            runbooks=("rank-silent",),
            no_value="none",
        ),
        Panel(
            "Age of what exporters show",
            (Target(f"max by (instance) ({pick(catalog.TICK_AGE, FLEET)})", "{{instance}}"),),
            "s",
            "How old an exporter's values were when it was scraped.",
            f"at most {_TICK_AGE_SECONDS:g} s: it looks once a second.",
            width=6,
            height=6,
            healthy=Healthy(high=_TICK_AGE_SECONDS),
            still="no incident of the lab stops an exporter",
            low=0,
            runbooks=(EXPORTER_DOWN,),
        ),
        Panel(
            "Rules that cannot decide",
            (Target(by("count", "finding", pick(catalog.FINDING_EVALUABLE, FLEET) + " == 0")),),
            "short",
            "At how many exporters each rule abstains. A sidecar asks no shard, and the shards' "
            "exporter reads no page: each leaves rules to the other. `diagnose` says why.",
            "no rule at all exporters.",
            kind="table",
            width=8,
            height=6,
            still="which rules can decide depends on what was seen so far",
            no_value="every rule decides",
        ),
        Panel(
            "What could not be read",
            (Target(f"max by (instance, source, reason) ({pick(catalog.SOURCE_INFO, FLEET)})"),),
            "short",
            "Sources that an exporter could not read, with the reason. Their values are absent "
            "from every board.",
            "an empty table.",
            kind="table",
            width=16,
            height=6,
            healthy=Healthy(absent=True),
            moves_in=("dead-shard", "frozen-shard"),
            hidden=("Value",),
            runbooks=(EXPORTER_DOWN,),
            no_value="all was read",
        ),
    ),
)

FLEET_BOARD: Final = Board(
    uid="stallscope-fleet",
    title="Stallscope / Fleet",
    description="Who stalls: engines, ranks and shards, worst first.",
    variables=(*ENGINE_VARIABLES, RANK_VARIABLE, SHARD_VARIABLE),
    rows=(_FINDINGS, _STALLS, _GATES, _SOURCES),
)
