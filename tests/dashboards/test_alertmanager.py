"""A real Alertmanager with the example: one incident is one page, whatever follows from it."""

from __future__ import annotations

import subprocess
import time

import pytest

from dashboards import generate
from dashboards.alertmanager import INHIBITED, WATCHDOG
from dashboards.finding_alerts import alert_name
from detectors.merge import FOLLOWS
from tests.dashboards.alertmanager_server import alertmanager_server
from tests.prometheus_binary import alertmanager_programs

SCALE = 0.02  # a group waits 0.6 s, and speaks again after 6 s


def finding(name: str, severity: str = "critical", **labels: str) -> dict[str, str]:
    place = {} if name == "shard-down" else {"namespace": "n", "engine": "e"}
    return {
        "alertname": alert_name(name),
        "finding": name,
        "severity": severity,
        **place,
        **labels,
    }


DOWN = finding("shard-down", shard="redis://v-0:6379")
# What comes, one after another, in a cluster -> the pages that must go out for it.
CASES = {
    "a shard is down, and all that follows": (
        [
            DOWN,
            *(finding(name) for name in INHIBITED["shard-down"][0]),
            finding("stuck-lookup", engine="another"),
        ],
        [["StallscopeShardDown"]],
    ),
    "a wedged load keeps ranks away": (
        [
            finding("rank-silent", rank="3"),
            finding("straggler-rank", rank="3"),
            finding("wedged-connection", rank="3"),
        ],
        [["StallscopeWedgedConnection"]],
    ),
    "an eviction wedges a connection": (
        [finding("wedged-connection", rank="1"), finding("evicted-before-load")],
        [["StallscopeEvictedBeforeLoad"]],
    ),
    "a warning does not mute what is worse": (
        [finding("store-skew", "warning", rank="0"), finding("straggler-rank", rank="0")],
        [["StallscopeStragglerRank"]],
    ),
    "a shard that begins anew": (
        [finding("cold-shard", "warning"), finding("orphaned-chunks", "warning")],
        [],
    ),
    "a warning": ([finding("store-skew", "warning", rank="3")], []),
    "a warning beside its critical form": (
        [finding("store-skew", rank="3"), finding("store-skew", "warning", rank="3")],
        [["StallscopeStoreSkew"]],
    ),
    "two engines, and another cluster's shard": (
        [finding("stuck-lookup", engine="a"), finding("stuck-lookup", engine="b")],
        [["StallscopeStuckLookup"], ["StallscopeStuckLookup"]],
    ),
    "the watchdog": ([{"alertname": WATCHDOG, "severity": "none"}], []),
}

TICKETS = {
    "a warning": [["StallscopeStoreSkew"]],
    "a warning does not mute what is worse": [["StallscopeStoreSkew"]],
    "a shard that begins anew": [["StallscopeColdShard"]],
}


def test_the_example_is_accepted():
    _, amtool = alertmanager_programs()
    path = generate.FOLDER / generate.ALERTMANAGER_FILE
    done = subprocess.run([amtool, "check-config", path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """What went out for all cases, each in a cluster of its own: cluster -> receiver -> alerts."""
    with alertmanager_server(tmp_path_factory.mktemp("am") / "server", SCALE) as server:
        for number in range(max(len(alerts) for alerts, _ in CASES.values())):
            coming = [
                {**alerts[number], "cluster": cluster}
                for cluster, (alerts, _) in CASES.items()
                if number < len(alerts)
            ]
            server.post(*coming)
        wanted = sum(len(pages) for _, pages in CASES.values())
        until = time.monotonic() + 20
        while time.monotonic() < until and not (
            len(server.pages()) >= wanted
            and len(server.sent.get("tickets", [])) >= len(TICKETS)
            and "watchdog" in server.sent
        ):
            time.sleep(0.1)
        time.sleep(1)  # what should not come would come now
        return {
            cluster: {
                receiver: [
                    sorted(alert["labels"]["alertname"] for alert in notification["alerts"])
                    for notification in notifications
                    if notification["commonLabels"]["cluster"] == cluster
                ]
                for receiver, notifications in server.sent.items()
            }
            for cluster in CASES
        }


@pytest.mark.parametrize("cluster", CASES)
def test_one_incident_pages_once(sent, cluster):
    assert sent[cluster]["pages"] == CASES[cluster][1]


def test_warnings_are_tickets_and_the_watchdog_goes_its_own_way(sent):
    tickets = {cluster: found["tickets"] for cluster, found in sent.items() if found["tickets"]}
    assert tickets == TICKETS
    watched = {cluster for cluster, found in sent.items() if found["watchdog"]}
    assert watched == {"the watchdog"}


def test_nothing_mutes_itself_and_no_two_mute_each_other():
    """Alertmanager would let neither through."""
    for cause, (effects, _) in INHIBITED.items():
        assert cause not in effects
        for effect in effects:
            assert cause not in INHIBITED.get(effect, ((), ()))[0], (cause, effect)


def test_what_the_detectors_put_under_a_cause_is_muted_by_it():
    for cause, follows in FOLLOWS.items():
        assert follows <= set(INHIBITED[cause][0])
    named = {"lookup-timeouts", "evicted-before-load", "cold-shard"}
    assert named <= set(INHIBITED["shard-down"][0])
    assert "straggler-rank" in INHIBITED["rank-silent"][0]
