"""All groups of rules, and the YAML in which Prometheus and its operator read them."""

from __future__ import annotations

from typing import Any, Final

from dashboards.durations import Scale
from dashboards.finding_alerts import finding_alerts
from dashboards.fleet_alerts import fleet_alerts
from dashboards.gates import gate_alerts
from dashboards.model import Links
from dashboards.recording import recordings
from dashboards.rule_model import Alert, Recording, RuleGroup

# Nobody knows where a site keeps its pages: `--runbook-base` says it.
RUNBOOK_BASE: Final = "https://runbooks.example.com/stallscope"
COMMAND: Final = "stallscope monitoring build"
_RECORD_SECONDS: Final = 30
_ALERT_SECONDS: Final = 15


def groups(scale: Scale) -> tuple[RuleGroup, ...]:
    """Every rule that is shipped."""
    return (
        RuleGroup("stallscope-recording", _RECORD_SECONDS, recordings(scale)),
        RuleGroup("stallscope-findings", _ALERT_SECONDS, tuple(finding_alerts())),
        RuleGroup("stallscope-gates", _RECORD_SECONDS, tuple(gate_alerts(scale))),
        RuleGroup("stallscope-fleet", _ALERT_SECONDS, tuple(fleet_alerts(scale))),
    )


def build(scale: Scale, links: Links) -> dict[str, Any]:
    """The rule file as Prometheus reads it."""
    return {
        "groups": [
            {
                "name": group.name,
                "interval": scale.text(group.interval_seconds),
                "rules": [_build(rule, scale, links) for rule in group.rules],
            }
            for group in groups(scale)
        ]
    }


def _build(rule: Recording | Alert, scale: Scale, links: Links) -> dict[str, Any]:
    if isinstance(rule, Recording):
        return rule.build()
    return rule.build(scale, links.url(rule.runbook) if rule.runbook else "")


def to_yaml(value: Any, what: str) -> str:
    """YAML with a line that says where it comes from. Raises ImportError without PyYAML."""
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, width=10_000, allow_unicode=True)
    return f"# {what}. Made by `{COMMAND}`: change dashboards/*.py, not this file.\n{text}"
