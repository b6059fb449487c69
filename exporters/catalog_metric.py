"""What a metric is, and how the lists of the catalog make one. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "stallscope_"

MetricType = Literal["counter", "gauge", "histogram"]
Emitter = Literal[
    "worker", "scheduler", "process", "engine", "shard", "exporter", "rule", "profile"
]

PROCESS_LABELS: Final = ("engine", "role", "rank")
COLLECTIVE_LABELS: Final = ("engine", "op", "basis")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is exposed.

    `emitted_by` is what one set of series stands for: a worker's or the scheduler's page
    ("process": either), an engine, a shard, the exporter itself, a rule or a
    file of profiles. `basis` says what the value rests on.
    """

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    help: str
    emitted_by: Emitter
    basis: str


def counter(
    name: str,
    unit: str,
    help_text: str,
    basis: str,
    labels: tuple[str, ...] = PROCESS_LABELS,
    emitted_by: Emitter = "process",
) -> Metric:
    return Metric(f"{PREFIX}{name}_total", "counter", unit, labels, help_text, emitted_by, basis)


def gauge(
    name: str,
    unit: str,
    help_text: str,
    basis: str,
    labels: tuple[str, ...] = PROCESS_LABELS,
    emitted_by: Emitter = "process",
) -> Metric:
    return Metric(f"{PREFIX}{name}", "gauge", unit, labels, help_text, emitted_by, basis)


def histogram(
    name: str,
    unit: str,
    help_text: str,
    basis: str,
    labels: tuple[str, ...],
    emitted_by: Emitter,
) -> Metric:
    """Its series are called `name` with _bucket (and the label `le`), _sum and _count."""
    return Metric(f"{PREFIX}{name}", "histogram", unit, labels, help_text, emitted_by, basis)


def series_names(metric: Metric) -> tuple[str, ...]:
    """The names of a metric's series, as a query uses them."""
    if metric.type != "histogram":
        return (metric.name,)
    return tuple(f"{metric.name}{suffix}" for suffix in ("_bucket", "_count", "_sum"))
