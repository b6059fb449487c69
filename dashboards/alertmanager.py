"""An example configuration for Alertmanager: one incident, one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dashboards.durations import Scale
from dashboards.finding_alerts import SHARD_DOWN
from dashboards.fleet_alerts import WATCHDOG
from detectors.merge import FOLLOWS

_WAIT_SECONDS: Final = 30
_GROUP_SECONDS: Final = 300
_REPEAT_SECONDS: Final = 14_400

_ENGINE: Final = ("cluster", "namespace", "engine")
# A shard has no engine of its own: what it does to engines is matched by cluster.
_WIDER: Final[Mapping[str, tuple[str, ...]]] = {SHARD_DOWN: ("cluster",)}
# What nobody sees at once and so is no symptom under a finding, but would page after it: a shard
# that was down comes back empty.
_LATER: Final[Mapping[str, frozenset[str]]] = {SHARD_DOWN: frozenset(("cold-shard", "shard-skew"))}

# What follows from a cause, and is muted while it stands: cause -> (findings, equal labels). Muted
# alerts mute in turn, so that what follows from what follows is silent too.
INHIBITED: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    cause: (tuple(sorted({*follows, *_LATER.get(cause, ())})), _WIDER.get(cause, _ENGINE))
    for cause, follows in FOLLOWS.items()
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
    """A cause mutes what follows from it, unless that is worse than the cause itself."""
    return [
        {
            "source_matchers": [f'finding = "{cause}"', f'severity = "{severity}"'],
            "target_matchers": [f'finding =~ "{"|".join(effects)}"', *milder],
            "equal": list(equal),
        }
        for cause, (effects, equal) in INHIBITED.items()
        for severity, milder in (("critical", ()), ("warning", ('severity = "warning"',)))
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
