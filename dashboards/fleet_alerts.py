"""What no single exporter can say of itself: absence, agreement of several, and trends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dashboards import foreign
from dashboards.durations import Scale
from dashboards.finding_alerts import SHARD_DOWN, alert_name
from dashboards.pages import EXPORTER_DOWN, PAGE_MISSING, RHO_RISING
from dashboards.promql import by, equals, pick, rate
from dashboards.recording import RATE_SECONDS, RHO, SATURATION
from dashboards.rule_model import Alert
from detectors import thresholds
from exporters import catalog

WATCHDOG: Final = "StallscopeWatchdog"
JOB: Final = ".*stallscope.*"

_KEEP_SECONDS: Final = 300
_STALE_TICK_SECONDS: Final = 15  # ticks are due each second
_WATCHERS: Final = 2


def fleet_alerts(scale: Scale) -> Iterator[Alert]:
    """The alerts in PromQL proper."""
    yield Alert(
        name=WATCHDOG,
        expr="vector(1)",
        for_seconds=0,
        keep_seconds=0,
        severity="none",
        summary="Alerting works",
        description="Always firing. When whatever receives it hears nothing, alerts do not arrive.",
        runbook="",
    )
    yield from _exporters()
    yield from _shard_down(scale)
    yield from _trends(scale)


def _exporters() -> Iterator[Alert]:
    yield Alert(
        name="StallscopeExporterDown",
        expr=f'up{{job=~"{JOB}"}} == 0',
        for_seconds=120,
        keep_seconds=0,
        severity="warning",
        summary="Exporter {{ $labels.instance }} is down",
        description=(
            "Prometheus cannot scrape {{ $labels.instance }}: nothing that it watches can be found."
        ),
        runbook=EXPORTER_DOWN,
    )
    yield Alert(
        name="StallscopeExporterAbsent",
        expr=f"absent({pick(catalog.TICKS)})",
        for_seconds=600,
        keep_seconds=0,
        severity="warning",
        summary="No exporter is scraped",
        description="No series of any stallscope exporter exists: all findings are silent.",
        runbook=EXPORTER_DOWN,
    )
    yield Alert(
        name="StallscopeExporterStale",
        expr=f"{pick(catalog.TICK_AGE)} > {_STALE_TICK_SECONDS}",
        for_seconds=60,
        keep_seconds=0,
        severity="warning",
        summary="Exporter {{ $labels.instance }} no longer ticks",
        description="Its last tick is {{ $value | humanizeDuration }} old; it is due each second.",
        runbook=EXPORTER_DOWN,
    )
    where = "cluster, namespace, pod"
    living = pick(catalog.PROCESS_STATE, 'state="alive"')
    yield Alert(
        name="StallscopePageMissing",
        expr=(
            f"(count by ({where}) ({pick(foreign.RUNNING)}) and "
            f"count by ({where}) ({pick(catalog.TICKS)})) unless "
            f"count by ({where}) ({living} == 1)"
        ),
        for_seconds=300,
        keep_seconds=0,
        severity="warning",
        summary="vLLM in {{ $labels.pod }} runs without a page",
        description=(
            "vLLM and an exporter run in {{ $labels.pod }}, and no engine process has a living "
            "page: nothing about its ranks can be seen."
        ),
        runbook=PAGE_MISSING,
    )


def _shard_down(scale: Scale) -> Iterator[Alert]:
    """Seen by two that look: two exporters, or one of them and an engine whose client fails."""
    place = "cluster, shard"
    # By instance first: an exporter that two jobs scrape is one witness.
    seen = by("max", f"{place}, instance", pick(catalog.SHARD_UP))
    down = f"count by ({place}) ({seen} == 0)"
    window = scale.text(120)
    clients = " or ".join(
        f"sum by (cluster) ({rate(catalog.PAGE_COUNTERS[name], window=window)}) > 0"
        for name in ("client_failed_calls", "lookup_timeouts")
    )
    description = (
        "Exporters that get no answer from shard {{ $labels.shard }}: {{ $value }}. Every rank "
        "that uses it misses, and its synchronous loads wait out their timeouts."
    )
    yield Alert(
        name=alert_name(SHARD_DOWN),
        expr=f"{down} >= {_WATCHERS} or ({down} and on (cluster) ({clients}))",
        for_seconds=30,
        keep_seconds=_KEEP_SECONDS,
        severity="critical",
        summary="Cache shard {{ $labels.shard }} is down, as seen by two or more",
        description=description,
        runbook=SHARD_DOWN,
        labels={"finding": SHARD_DOWN},
    )
    yield Alert(
        name="StallscopeShardUnseen",
        expr=down,
        for_seconds=120,
        keep_seconds=0,
        severity="warning",
        summary="Cache shard {{ $labels.shard }} does not answer an exporter",
        description=description,
        runbook=SHARD_DOWN,
        labels={"finding": SHARD_DOWN},
    )


def _trends(scale: Scale) -> Iterator[Alert]:
    """Where utilisation reaches 1 a queue has no end: warn while there is time to act."""
    horizon = scale.seconds(thresholds.RHO_TO_ONE_SECONDS)
    window = scale.text(thresholds.RHO_WINDOW_SECONDS)
    # What has just begun climbs to its level over the window of its rate, and that is no trend.
    began = scale.text(thresholds.RHO_WINDOW_SECONDS + RATE_SECONDS)
    lower = pick(SATURATION, equals("bound", "lower"))
    for name, series, place in (
        ("StallscopeShardRhoRising", lower, "shard {{ $labels.shard }}"),
        ("StallscopeEngineRhoRising", RHO, "engine {{ $labels.engine }}"),
    ):
        yield Alert(
            name=name,
            expr=(
                f"avg_over_time({series}[{window}]) > {thresholds.RHO_WARNING:g} and "
                f"predict_linear({series}[{window}], {horizon}) >= 1 and {series} offset {began}"
            ),
            for_seconds=thresholds.RHO_HELD_SECONDS,
            keep_seconds=_KEEP_SECONDS,
            severity="warning",
            summary=f"rho of {place} reaches 1 within half an hour",
            description=(
                f"Utilisation of {place} averaged {{{{ $value | humanizePercentage }}}} over 15 "
                "minutes and grows: at 1 its queue has no end."
            ),
            runbook=RHO_RISING,
            labels={"finding": RHO_RISING},
        )
