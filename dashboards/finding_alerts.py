"""One alert a rule of the detectors: it selects the finding, and decides nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dashboards.promql import equals, pick
from dashboards.rule_model import Alert
from detectors import ALL_RULES
from exporters import catalog

# Labels of a finding that stay the same while its incident lasts, beside cluster, namespace and
# engine. One that may wander (an eviction meets this rank, then that) would end one alert and
# begin another each time it does.
FIXED_PLACE: Final[Mapping[str, tuple[str, ...]]] = {
    "cold-shard": ("shard",),
    "collective-mismatch": ("rank",),
    "cpu-throttled": ("rank",),
    "orphaned-chunks": ("rank",),
    "rank-silent": ("rank",),
    "shard-saturated": ("shard",),
    "shard-skew": ("shard",),
    "store-skew": ("rank",),
    "straggler-rank": ("rank",),
    "stuck-lookup": ("rank",),
    "wedged-connection": ("rank",),
}
# Findings that say what cannot be told, and ask nothing of anybody.
ONLY_INFO: Final = frozenset(("half-a-group",))
RULES: Final = tuple(rule.name for rule in ALL_RULES)
# What one exporter says of a shard is not enough to wake someone: dashboards/fleet_alerts.py asks
# for a second witness.
SHARD_DOWN: Final = "shard-down"
# A finding has stood its own window already; the wait is for one that is over at once.
_FOR_SECONDS: Final = 30
# Longer than the gap between two windows of a rule, so that a fault that pauses is one alert.
_KEEP_SECONDS: Final = 300


def alert_name(finding: str) -> str:
    """ "shard-down" -> "StallscopeShardDown"."""
    return "Stallscope" + "".join(word.capitalize() for word in finding.split("-"))


def finding_alerts(rules: Sequence[str] = RULES) -> list[Alert]:
    """The alerts, in the rules' order: a cause before what follows from it."""
    return [_alert(name) for name in rules if name != SHARD_DOWN and name not in ONLY_INFO]


def _alert(finding: str) -> Alert:
    place = FIXED_PLACE.get(finding, ())
    labels = ", ".join(("cluster", "namespace", "engine", "finding", "severity", *place))
    chosen = pick(catalog.FINDING, equals("finding", finding), 'severity!="info"')
    where = "".join(f", {label} {{{{ $labels.{label} }}}}" for label in place)
    return Alert(
        name=alert_name(finding),
        expr=f"max by ({labels}) ({chosen}) == 1",
        for_seconds=_FOR_SECONDS,
        keep_seconds=_KEEP_SECONDS,
        severity="",
        summary=f"{finding} on engine {{{{ $labels.engine }}}}{where}",
        description=(
            f"The exporter finds {finding} ({{{{ $labels.severity }}}}) on engine "
            f"{{{{ $labels.engine }}}}{where} in {{{{ $labels.namespace }}}}. In the pod, "
            "`stallscope diagnose` shows the evidence and the next command."
        ),
        runbook=finding,
    )
