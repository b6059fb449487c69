"""For each alert, histories in which it must fire and histories in which it must not."""

from __future__ import annotations

from dataclasses import dataclass, field

from dashboards.finding_alerts import FIXED_PLACE, ONLY_INFO, RULES, SHARD_DOWN, alert_name
from dashboards.gates import LEAST_REQUESTS

POD = 'cluster="c", namespace="n", pod="p", instance="i"'
SHARD = 'shard="redis://v-0:6379"'
VLLM = 'cluster="c", namespace="n", pod="p", model_name="glm", engine="0"'
STEP_SECONDS = 30


@dataclass(frozen=True)
class Case:
    """`series` are promtool's: selector -> values, one every STEP_SECONDS. `firing` are the label
    sets that must fire at `minute`, without alertname; none where it must be silent."""

    alert: str
    why: str
    series: dict[str, str]
    minute: float
    firing: list[dict[str, str]] = field(default_factory=list)


def finding(name: str, more: str = "", severity: str = "critical", rank: str = "3") -> str:
    return (
        f'stallscope_finding{{finding="{name}", severity="{severity}", engine="e", rank="{rank}", '
        f"{SHARD}, {POD}{more}}}"
    )


def finding_cases() -> list[Case]:
    cases = []
    for name in RULES:
        if name == SHARD_DOWN or name in ONLY_INFO:
            continue
        place = {"rank": "3", "shard": "redis://v-0:6379"}
        labels = {"cluster": "c", "namespace": "n", "engine": "e", "finding": name}
        labels |= {label: place[label] for label in FIXED_PLACE.get(name, ())}
        alert = alert_name(name)
        critical = [{**labels, "severity": "critical"}]
        cases += [
            Case(alert, "it stands", {finding(name): "1x20"}, 3, critical),
            Case(
                alert,
                "two exporters see it, and it is one alert",
                {finding(name): "1x20", finding(name, ', role="other"'): "1x20"},
                3,
                critical,
            ),
            Case(
                alert,
                "it becomes critical",
                {
                    finding(name, severity="warning"): "1x5 stale",
                    finding(name): "_x6 1x20",
                },
                6,
                [{**labels, "severity": "warning"}, *critical],
            ),
            Case(
                alert,
                "it pauses and comes again",
                {finding(name): "1x6 stale _x3 1x9"},
                4.5,
                critical,
            ),
            Case(alert, "it is over for long", {finding(name): "1x6 stale"}, 15),
            Case(alert, "it is over at once", {finding(name): "_ 1 stale"}, 1.5),
            Case(alert, "it is for information", {finding(name, severity="info"): "1x20"}, 3),
            Case(alert, "another finding stands", {finding(f"{name}-not"): "1x20"}, 3),
        ]
        if "rank" not in FIXED_PLACE.get(name, ()):
            moves = {finding(name, rank="0"): "1x4 stale", finding(name, rank="1"): "_x5 1x9"}
            cases.append(Case(alert, "it wanders from rank to rank", moves, 4, critical))
    return cases


def ttft(over_30: int, over_70: int, all_of_them: int, mean: float, steps: int = 140) -> dict:
    """Each step brings `all_of_them` requests, of which so many are over the limits."""
    name = "vllm:time_to_first_token_seconds"
    counts = {
        'le="30.0"': all_of_them - over_30,
        'le="70.0"': all_of_them - over_70,
        'le="+Inf"': all_of_them,
    }
    series = {f"{name}_bucket{{{le}, {VLLM}}}": f"0+{n}x{steps}" for le, n in counts.items()}
    series[f"{name}_count{{{VLLM}}}"] = f"0+{all_of_them}x{steps}"
    series[f"{name}_sum{{{VLLM}}}"] = f"0+{mean * all_of_them:g}x{steps}"
    return series


MODEL = {"cluster": "c", "namespace": "n", "model_name": "glm"}
PAGE = {**MODEL, "severity": "critical"}
P50, P90, MEAN = "StallscopeTtftP50Missed", "StallscopeTtftP90Missed", "StallscopeTtftMeanMissed"
BLIND = "StallscopeGateBlind"
# 120 steps are the hour: one request in three of them is 40, and not enough.
HOUR = 65
FEW = {
    key: value.replace("0+1x", "0+0.3x").replace("0+100x", "0+30x")
    for key, value in ttft(1, 1, 1, 100).items()
}
assert LEAST_REQUESTS == 50


def without_buckets(series: dict, limit: str) -> dict:
    return {k: v for k, v in series.items() if f'le="{limit}"' not in k}


def changed(series: dict, first: dict, steps: int) -> dict:
    """As `first` for `steps`, then as `series`."""
    return {
        key: f"{first[key].partition('x')[0]}x{steps} "
        f"{_height(first[key]) * (steps + 1):g}+{_height(value):g}x130"
        for key, value in series.items()
    }


def _height(values: str) -> float:
    return float(values.partition("+")[2].partition("x")[0])


def gate_cases() -> list[Case]:
    slow, well = ttft(6, 2, 10, 40), ttft(1, 0, 10, 12)
    return [
        Case(P50, "60% over 30 s", slow, HOUR, [PAGE]),
        Case(P50, "half of them is allowed", ttft(5, 0, 10, 20), HOUR),
        Case(P50, "10% over 30 s", well, HOUR),
        Case(P50, "all over, but too few requests", FEW, HOUR),
        Case(P50, "all over for 5 minutes only", changed(ttft(10, 0, 10, 31), well, 110), 60),
        Case(P50, "over for an hour and well for 8 minutes", changed(well, slow, 110), 64),
        Case(P50, "no bucket at 30 s", without_buckets(slow, "30.0"), HOUR),
        Case(
            P50,
            "an engine without the bucket counts in neither part",
            {
                **well,
                **{
                    k.replace('engine="0"', 'engine="1"'): v
                    for k, v in without_buckets(ttft(10, 10, 100, 1), "30.0").items()
                },
            },
            HOUR,
        ),
        Case(P50, "no traffic", {k: "0x140" for k in slow}, HOUR),
        Case(P90, "20% over 70 s", slow, HOUR, [PAGE]),
        Case(P90, "10% is allowed", ttft(5, 1, 10, 20), HOUR),
        Case(MEAN, "a mean of 40 s", slow, HOUR, [PAGE]),
        Case(MEAN, "a mean of 12 s", well, HOUR),
        Case(
            BLIND,
            "no bucket at 30 s",
            without_buckets(well, "30.0"),
            HOUR,
            [{**MODEL, "severity": "warning", "limit": "30s"}],
        ),
        Case(
            BLIND,
            "no bucket at 70 s",
            without_buckets(well, "70.0"),
            HOUR,
            [{**MODEL, "severity": "warning", "limit": "70s"}],
        ),
        Case(BLIND, "both buckets are there", well, HOUR),
        Case(
            BLIND,
            "Prometheus wrote the limits without a point",
            {k.replace(".0", ""): v for k, v in well.items()},
            HOUR,
        ),
    ]


UP = 'up{job="n/stallscope-pages", instance="i", namespace="n"}'
TICKS = f"stallscope_ticks_total{{{POD}}}"
TICK_AGE = f"stallscope_tick_age_seconds{{{POD}}}"
RUNNING = f"vllm:num_requests_running{{{VLLM}}}"
ALIVE = f'stallscope_process_state{{state="alive", engine="e", role="worker", rank="0", {POD}}}'


def shard_up(instance: str, job: str = "a") -> str:
    where = f'cluster="c", namespace="n", instance="{instance}", job="{job}"'
    return f"stallscope_shard_up{{{SHARD}, {where}}}"


def failed(metric: str) -> str:
    return f'{metric}{{engine="e", role="worker", rank="0", {POD}}}'


DOWN = alert_name(SHARD_DOWN)
DOWN_PAGE = [
    {"cluster": "c", "shard": "redis://v-0:6379", "finding": SHARD_DOWN, "severity": "critical"}
]
DOWN_TICKET = [{**DOWN_PAGE[0], "severity": "warning"}]
CALLS = failed("stallscope_client_failed_calls_total")
TIMEOUTS = failed("stallscope_lookup_timeouts_total")
SATURATION = (
    f'stallscope_shard_main_thread_saturation{{bound="lower", {SHARD}, cluster="c", '
    'namespace="n", instance="i"}'
)
RISING = {"cluster": "c", "namespace": "n", "severity": "warning", "finding": "rho-rising"}


RHO = f'stallscope_model_rho{{engine="e", {POD}}}'


def fleet_cases() -> list[Case]:
    exporter = {"job": "n/stallscope-pages", "instance": "i", "namespace": "n"}
    down, absent, stale = (f"StallscopeExporter{x}" for x in ("Down", "Absent", "Stale"))
    missing, unseen = "StallscopePageMissing", "StallscopeShardUnseen"
    shard_rho, engine_rho = "StallscopeShardRhoRising", "StallscopeEngineRhoRising"
    place = {"cluster": "c", "namespace": "n", "pod": "p"}
    pods = {RUNNING: "1x40", TICKS: "0+30x40"}
    return [
        Case("StallscopeWatchdog", "always", {UP: "1x20"}, 1, [{"severity": "none"}]),
        Case(down, "no answer", {UP: "0x20"}, 5, [{**exporter, "severity": "warning"}]),
        Case(down, "a scrape is lost", {UP: "1 1 0 0 1x20"}, 3),
        Case(down, "another job is down", {UP.replace("stallscope", "other"): "0x20"}, 5),
        Case(absent, "nobody is scraped", {UP: "0x60"}, 15, [{"severity": "warning"}]),
        Case(absent, "one is", {TICKS: "0+30x60"}, 15),
        Case(
            stale,
            "the ticks stand still",
            {TICK_AGE: "0+30x20"},
            5,
            [{**place, "instance": "i", "severity": "warning"}],
        ),
        Case(stale, "the ticks go on", {TICK_AGE: "0.5x20"}, 5),
        Case(missing, "no living page", pods, 10, [{**place, "severity": "warning"}]),
        Case(
            missing,
            "the page's writer is gone",
            {**pods, ALIVE: "0x40"},
            10,
            [{**place, "severity": "warning"}],
        ),
        Case(missing, "a living page", {**pods, ALIVE: "1x40"}, 10),
        Case(missing, "a pod without our exporter", {RUNNING: "1x40"}, 10),
        Case(
            DOWN,
            "two exporters say so",
            {shard_up("i"): "0x20", shard_up("j"): "0x20"},
            4,
            DOWN_PAGE,
        ),
        Case(
            DOWN,
            "one, and calls of a client fail",
            {shard_up("i"): "0x20", CALLS: "0+3x20"},
            4,
            DOWN_PAGE,
        ),
        Case(
            DOWN,
            "one, and lookups time out",
            {shard_up("i"): "0x20", TIMEOUTS: "0+3x20"},
            4,
            DOWN_PAGE,
        ),
        Case(DOWN, "one alone", {shard_up("i"): "0x20", shard_up("j"): "1x20", CALLS: "5x20"}, 4),
        Case(
            DOWN,
            "one, which two jobs scrape",
            {shard_up("i"): "0x20", shard_up("i", "b"): "0x20"},
            4,
        ),
        Case(DOWN, "calls fail and the shard is up", {shard_up("i"): "1x20", CALLS: "0+3x20"}, 4),
        Case(
            DOWN, "a restart that is over at once", {shard_up("i"): "1 0 1x20", CALLS: "0+3x20"}, 4
        ),
        Case(unseen, "one alone", {shard_up("i"): "0x20", shard_up("j"): "1x20"}, 4, DOWN_TICKET),
        Case(unseen, "nobody", {shard_up("i"): "1x20"}, 4),
        Case(
            shard_rho,
            "it grows towards 1",
            {SATURATION: "0.5+0.01x60"},
            24,
            [{**RISING, "shard": "redis://v-0:6379", "bound": "lower"}],
        ),
        Case(shard_rho, "it grows too slowly", {SATURATION: "0.62+0.0005x60"}, 24),
        Case(shard_rho, "high and flat", {SATURATION: "0.8x60"}, 24),
        Case(shard_rho, "low, however fast", {SATURATION: "0.05+0.01x60"}, 24),
        Case(
            engine_rho, "it grows towards 1", {RHO: "0.5+0.01x60"}, 24, [{**RISING, "engine": "e"}]
        ),
        Case(engine_rho, "it grows too slowly", {RHO: "0.62+0.0005x60"}, 24),
        Case(engine_rho, "steady", {RHO: "0.7x60"}, 24),
        Case(engine_rho, "just begun", {RHO: "0.3+0.05x20"}, 9),
        Case(engine_rho, "too few prompts to tell, for most of it", {RHO: "_x40 0.7+0.02x10"}, 24),
    ]
