"""A lab's incident through a real Prometheus and a real Alertmanager: it pages once."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from dashboards.finding_alerts import alert_name
from lab.incidents import INCIDENTS
from tests.dashboards.alertmanager_server import alertmanager_server
from tests.dashboards.soak.monitored import SCALE, Exporter, exporter, lab_run, prometheus
from tests.dashboards.soak.test_panels_and_alerts import (
    FIRES_WITHIN_SECONDS,
    TRIES,
    arguments,
    was_struck,
)
from tests.prometheus_binary import programs

pytest.importorskip("torch")
pytest.importorskip("lmcache")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

# At this scale a group speaks again after 6 s, and an alert that ends is kept for as long.
LOOKED_SECONDS = 20.0


TOGETHER, APART = "one exporter", "a sidecar and the shards' own"
# A sidecar asks no shard, so it cannot tell whether a GET was answered: what it sees is the rank.
SEEN_APART = {"missing-key": "rank-silent"}


@pytest.mark.parametrize("roles", [TOGETHER, APART])
@pytest.mark.parametrize("name", ["dead-shard", "frozen-shard", "lost-completion", "missing-key"])
def test_an_incident_pages_once(tmp_path, name, roles):
    finding = INCIDENTS[name].finding if roles == TOGETHER else SEEN_APART.get(name)
    alert = alert_name(finding or INCIDENTS[name].finding)
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            lab, pages, shards = stack.enter_context(lab_run(folder, *arguments(name)))
            found = [stack.enter_context(e) for e in _exporters(roles, pages, shards)]
            manager = stack.enter_context(alertmanager_server(folder / "am", SCALE))
            targets = [e.target for e in found]
            server = stack.enter_context(
                prometheus(programs()[0], folder / "prom", targets, manager.address)
            )
            try:
                server.wait_for(alert, FIRES_WITHIN_SECONDS)
            except AssertionError:
                if was_struck(lab, name):
                    continue
                raise
            time.sleep(LOOKED_SECONDS)
            sent, fired = manager.pages(), server.fired()
        print(f"{name}, {roles}: fired {sorted(fired)}, paged {sent}", flush=True)
        assert len(sent) == 1 and alert in sent[0], (sent, fired)
        return
    pytest.skip(f"the stock client lost a completion by itself in {TRIES} runs (#5547)")


def _exporters(
    roles: str, pages: Path, shards: list[str]
) -> list[contextlib.AbstractContextManager[Exporter]]:
    """As the lab has it, or as a deployment does: one beside the engine, one for the shards."""
    if roles == TOGETHER:
        return [exporter(pages, shards)]
    return [exporter(pages, []), exporter(None, shards, "shards-0")]
