"""An example configuration for Alertmanager: one incident, one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dashboards.durations import Scale
from dashboards.finding_alerts import SHARD_DOWN
from dashboards.fleet_alerts import WATCHDOG

_WAIT_SECONDS: Final = 30
_GROUP_SECONDS: Final = 300
_REPEAT_SECONDS: Final = 14_400

# What follows from a cause, and is muted while it stands: cause -> (findings, equal labels). A
# shard has no engine of its own, so what it does to engines is matched by cluster.
INHIBITED: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    SHARD_DOWN: (
        (
            "lookup-timeouts",
            "evicted-before-load",
            "cold-shard",
            "shard-skew",
            "load-mismatch",
            "stuck-lookup",
            "wedged-connection",
            "rank-silent",
            "straggler-rank",
            "progress-stall",
        ),
        ("cluster",),
    ),
    "evicted-before-load": (
        ("wedged-connection", "stuck-lookup", "rank-silent", "straggler-rank", "lookup-timeouts"),
        ("cluster", "namespace", "engine"),
    ),
    "wedged-connection": (
        ("stuck-lookup", "rank-silent", "straggler-rank", "lookup-timeouts"),
        ("cluster", "namespace", "engine"),
    ),
    "stuck-lookup": (
        ("rank-silent", "straggler-rank", "lookup-timeouts"),
        ("cluster", "namespace", "engine"),
    ),
    "rank-silent": (("straggler-rank", "progress-stall"), ("cluster", "namespace", "engine")),
    "store-skew": (("straggler-rank",), ("cluster", "namespace", "engine")),
}


def build(scale: Scale) -> dict[str, Any]:
    """The configuration. Its receivers name URLs that a site replaces."""
    return {
        "route": {
            "receiver": "tickets",
            "group_by": ["cluster", "namespace", "engine"],
            "group_wait": scale.text(_WAIT_SECONDS),
            "group_interval": scale.text(_GROUP_SECONDS),
            "repeat_interval": scale.text(_REPEAT_SECONDS),
            "routes": [
                {
                    "matchers": [f'alertname = "{WATCHDOG}"'],
                    "receiver": "watchdog",
                    "group_wait": "0s",
                    "repeat_interval": scale.text(60),
                },
                {
                    "matchers": ['severity = "critical"'],
                    "receiver": "pages",
                },
            ],
        },
        "inhibit_rules": [*_causes(), _same_but_milder()],
        "receivers": [
            _receiver("pages", True),
            _receiver("tickets", True),
            _receiver("watchdog", False),
        ],
    }


def _causes() -> list[dict[str, Any]]:
    return [
        {
            "source_matchers": [f'finding = "{cause}"', 'severity = "critical"'],
            "target_matchers": [f'finding =~ "{"|".join(effects)}"'],
            "equal": list(equal),
        }
        for cause, (effects, equal) in INHIBITED.items()
    ]


def _same_but_milder() -> dict[str, Any]:
    """A finding that became critical has been a warning: that one is silent then."""
    return {
        "source_matchers": ['severity = "critical"', 'finding != ""'],
        "target_matchers": ['severity = "warning"', 'finding != ""'],
        "equal": ["cluster", "namespace", "engine", "finding", "shard"],
    }


def _receiver(name: str, send_resolved: bool) -> dict[str, Any]:
    url = f"https://alerts.example.com/stallscope/{name}"
    return {"name": name, "webhook_configs": [{"url": url, "send_resolved": send_resolved}]}
