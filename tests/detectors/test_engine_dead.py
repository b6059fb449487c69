"""engine-dead: all gone, and their pages left."""

from __future__ import annotations

import dataclasses

from detectors.engine_dead import RULE
from tests.detectors.fleet_pictures import picture, ranks


def gone(**changes):
    made = ranks(liveness="dead", heartbeat_age_seconds=40.0)
    first = dataclasses.replace(made[2], heartbeat_age_seconds=44.0)
    return (made[0], made[1], dataclasses.replace(first, **changes), made[3])


def test_who_went_first():
    [finding] = RULE(picture(gone())).findings
    assert (finding.severity, finding.since_seconds) == ("critical", 40.0)
    assert "rank 2 (pid 102) went first" in finding.summary


def test_while_one_runs_it_is_another_fault():
    assert RULE(picture(gone(liveness="alive"))).findings == ()
    assert RULE(picture(gone(liveness="frozen"))).findings == ()


def test_an_old_page_is_nobodys_alarm():
    old = ranks(liveness="dead", heartbeat_age_seconds=3601.0)
    assert RULE(picture(old)).findings == ()
