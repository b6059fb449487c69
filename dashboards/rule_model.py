"""Recording and alerting rules as typed values, before they are YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dashboards.durations import Scale

# critical wakes someone; warning is for working hours; none is for the watchdog alone.
AlertSeverity = Literal["critical", "warning", "none"]


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded series, named level:metric:operation. `series_a_pod` is what it costs in
    long-term storage, for each engine pod."""

    record: str
    expr: str
    series_a_pod: int = 0

    def build(self) -> dict[str, Any]:
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `severity` is left empty where the series carries its own.

    `runbook` is a page of runbooks/pages. Durations are seconds, before scaling.
    """

    name: str
    expr: str
    for_seconds: float
    keep_seconds: float
    severity: AlertSeverity | Literal[""]
    summary: str
    description: str
    runbook: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def build(self, scale: Scale, runbook_url: str) -> dict[str, Any]:
        labels = dict(self.labels)
        if self.severity:
            labels["severity"] = self.severity
        annotations = {"summary": self.summary, "description": self.description}
        if self.runbook:
            annotations["runbook"] = f"stallscope runbook {self.runbook}"
            annotations["runbook_url"] = runbook_url
        built: dict[str, Any] = {"alert": self.name, "expr": self.expr}
        if self.for_seconds:
            built["for"] = scale.text(self.for_seconds)
        if self.keep_seconds:
            built["keep_firing_for"] = scale.text(self.keep_seconds)
        return built | {"labels": labels, "annotations": annotations}


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules evaluated together and in order, every `interval_seconds`."""

    name: str
    interval_seconds: float
    rules: tuple[Recording, ...] | tuple[Alert, ...]
