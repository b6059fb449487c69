"""Gates: whether requests get their first token in time."""

from __future__ import annotations

from typing import Final

from dashboards import foreign, recording
from dashboards.board_fleet import NO_VLLM
from dashboards.gates import GATES, LEAST_REQUESTS, MEAN_LIMIT_SECONDS
from dashboards.model import Board, Healthy, Panel, Row, Target
from dashboards.pages import TTFT_GATE as RUNBOOK
from dashboards.promql import ENGINE, FLEET, by, pick, rate, total
from dashboards.variables import ENGINE_VARIABLES, MODEL
from exporters import catalog

_MODEL: Final = f'{FLEET}, model_name=~"$model"'
_POD: Final = "namespace, pod"
NO_GATE: Final = "no run of the lab is long enough to miss a gate"
_NO_DATA: Final = "No vLLM is scraped"


def _both_windows(name: str, short: str, long: str) -> tuple[Target, Target]:
    return (
        Target(pick(short, _MODEL), f"{name}{{{{model_name}}}} 5m"),
        Target(pick(long, _MODEL), f"{name}{{{{model_name}}}} 1h"),
    )


def _mean(spent: str, count: str) -> str:
    return f"{total(_POD, rate(spent, _MODEL))} / ({total(_POD, rate(count, _MODEL))} > 0)"


def _quantile(quantile: float) -> Target:
    buckets = total("model_name, le", rate(foreign.TTFT_BUCKET, _MODEL))
    return Target(
        f"histogram_quantile({quantile:g}, {buckets})", f"P{quantile * 100:g} {{{{model_name}}}}"
    )


_JUDGED: Final = Row(
    "The gates",
    (
        *(
            Panel(
                f"{gate.name}: requests over {gate.limit_seconds:g} s",
                _both_windows(
                    "",
                    recording.ttft_over(gate.limit_seconds, recording.SHORT_SECONDS),
                    recording.ttft_over(gate.limit_seconds, recording.LONG_SECONDS),
                ),
                "percentunit",
                f"The share of requests whose first token took longer than "
                f"{gate.limit_seconds:g} s, over 5 minutes and over an hour. The gate is missed "
                f"where both are over the line, with {LEAST_REQUESTS} requests or more.",
                f"at most {gate.allowed_share:.0%}.",
                width=8,
                healthy=Healthy(high=gate.allowed_share),
                still=NO_VLLM,
                low=0,
                high=1,
                runbooks=(RUNBOOK,),
                no_value=f"No bucket at {gate.limit_seconds:g} s, or no vLLM is scraped",
            )
            for gate in GATES
        ),
        Panel(
            "Mean time to first token",
            _both_windows(
                "",
                recording.ttft_mean(recording.SHORT_SECONDS),
                recording.ttft_mean(recording.LONG_SECONDS),
            ),
            "s",
            "The mean over 5 minutes and over an hour.",
            f"at most {MEAN_LIMIT_SECONDS:g} s.",
            width=8,
            healthy=Healthy(high=MEAN_LIMIT_SECONDS),
            still=NO_VLLM,
            low=0,
            runbooks=(RUNBOOK,),
            no_value=_NO_DATA,
        ),
    ),
)

_BAND: Final = "prompt_tokens"
_BAND_LEGEND: Final = "up to {{prompt_tokens}} tokens"
_BUCKETS, _COUNTS, _SUMS = catalog.series_names(catalog.TTFT)


def _band_quantile(quantile: float) -> Target:
    buckets = total(f"{_BAND}, le", rate(_BUCKETS, ENGINE))
    return Target(f"histogram_quantile({quantile:g}, {buckets})", _BAND_LEGEND)


_BANDS: Final = Row(
    "By length of the prompt, as the scheduler's page counts it",
    (
        Panel(
            "P50 by prompt length",
            (_band_quantile(0.5),),
            "s",
            "Half of the prompts of a band have their first token within this time. A band is "
            "named by the most tokens of its prompts.",
            f"below {GATES[0].limit_seconds:g} s in every band.",
            width=8,
            healthy=Healthy(high=GATES[0].limit_seconds),
            still=NO_GATE,
            low=0,
            runbooks=(RUNBOOK,),
        ),
        Panel(
            "P90 by prompt length",
            (_band_quantile(0.9),),
            "s",
            "Nine of ten prompts of a band have their first token within this time. One band that "
            "is slow alone is a tier too slow for its length; all of them slow are a stall.",
            f"below {GATES[1].limit_seconds:g} s in every band.",
            width=8,
            healthy=Healthy(high=GATES[1].limit_seconds),
            still=NO_GATE,
            low=0,
            runbooks=(RUNBOOK,),
        ),
        Panel(
            "Requests by prompt length",
            (Target(total(_BAND, rate(_COUNTS, ENGINE)), _BAND_LEGEND),),
            "reqps",
            "First tokens a second, by band.",
            "the mix of your traffic.",
            width=8,
            still="what is healthy depends on the traffic",
            low=0,
            stacked=True,
        ),
        Panel(
            "Requests that wait and run in each engine",
            (
                Target(
                    by("max", "engine", pick(catalog.REQUESTS_WAITING, ENGINE)),
                    "{{engine}} waiting",
                ),
                Target(
                    by("max", "engine", pick(catalog.REQUESTS_RUNNING, ENGINE)),
                    "{{engine}} running",
                ),
            ),
            "short",
            "As the last step of each engine was made up.",
            "waiting comes and goes; one that only grows is an engine with rho above 1.",
            width=24,
            still="what is healthy depends on the traffic",
            low=0,
            runbooks=("queue-not-prefill",),
        ),
    ),
)

_WHY: Final = Row(
    "Where the time goes",
    (
        Panel(
            "Time to first token",
            (_quantile(0.5), _quantile(0.9), _quantile(0.99)),
            "s",
            "Quantiles as vLLM's buckets give them: no finer than these.",
            "P50 under 30 s and P90 under 70 s for prompts of up to 200k tokens.",
            still=NO_VLLM,
            low=0,
            runbooks=(RUNBOOK,),
            no_value=_NO_DATA,
        ),
        Panel(
            "Requests judged",
            _both_windows(
                "",
                recording.ttft_count(recording.SHORT_SECONDS),
                recording.ttft_count(recording.LONG_SECONDS),
            ),
            "short",
            "How many requests the shares rest on.",
            f"{LEAST_REQUESTS} or more in the hour; below that no gate is judged.",
            still=NO_VLLM,
            low=0,
            no_value=_NO_DATA,
        ),
        Panel(
            "Mean time in the queue",
            (Target(_mean(foreign.QUEUE_SUM, foreign.QUEUE_COUNT), "{{namespace}}/{{pod}}"),),
            "s",
            "The time before a request's first step.",
            "below a second. A long prefill with a short queue is a stall; a long queue is load.",
            still=NO_VLLM,
            low=0,
            no_value=_NO_DATA,
        ),
        Panel(
            "Mean time in prefill",
            (Target(_mean(foreign.PREFILL_SUM, foreign.PREFILL_COUNT), "{{namespace}}/{{pod}}"),),
            "s",
            "The time from a request's first step to its first token.",
            "in proportion to the prompts, and alike in all pods.",
            still=NO_VLLM,
            low=0,
            no_value=_NO_DATA,
        ),
        Panel(
            "Requests waiting",
            (Target(total(_POD, pick(foreign.WAITING, _MODEL)), "{{namespace}}/{{pod}}"),),
            "short",
            "Requests that no step has taken up.",
            "coming and going; one that only grows is an engine with rho above 1.",
            still=NO_VLLM,
            low=0,
            no_value=_NO_DATA,
        ),
        Panel(
            "Requests running",
            (Target(total(_POD, pick(foreign.RUNNING, _MODEL)), "{{namespace}}/{{pod}}"),),
            "short",
            "Requests in the engine's batch.",
            "alike in all pods.",
            still=NO_VLLM,
            low=0,
            no_value=_NO_DATA,
        ),
    ),
)

GATES_BOARD: Final = Board(
    uid="stallscope-gates",
    title="Stallscope / Gates",
    description="Time to first token against its limits.",
    variables=(*ENGINE_VARIABLES, MODEL),
    rows=(_JUDGED, _BANDS, _WHY),
)
