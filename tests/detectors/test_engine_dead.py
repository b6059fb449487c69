"""engine-dead: all gone, and their pages left."""

from __future__ import annotations

import dataclasses

from detectors.engine_dead import RULE
from tests.detectors.fleet_pictures import picture, ranks, scheduler


def gone(apart=4.0, **changes):
    made = ranks(liveness="dead", heartbeat_age_seconds=40.0)
    first = dataclasses.replace(made[2], heartbeat_age_seconds=40.0 + apart)
    return (made[0], made[1], dataclasses.replace(first, **changes), made[3])


def test_who_went_first():
    [finding] = RULE(picture(gone())).findings
    assert (finding.severity, finding.since_seconds) == ("critical", 40.0)
    assert "rank 2 (pid 102) went first" in finding.summary


def test_of_hearts_that_stopped_together_nobody_went_first():
    [finding] = RULE(picture(gone(apart=0.9))).findings
    assert "went first" not in finding.summary


def test_without_its_scheduler_an_engine_is_dead():
    lost = scheduler(liveness="dead", heartbeat_age_seconds=9.0)
    [finding] = RULE(picture((*ranks(), lost))).findings
    assert (finding.cause, finding.since_seconds) == ("scheduler", 9.0)
    assert RULE(picture((*ranks(), scheduler()))).findings == ()


def test_what_killed_it_is_on_its_page():
    dead = ranks(liveness="dead", heartbeat_age_seconds=9.0, counters={"log_engine_died": 1})
    [finding] = RULE(picture(dead)).findings
    assert "engine_died x 4" in finding.evidence[1].text


def test_while_one_runs_it_is_another_fault():
    assert RULE(picture(gone(liveness="alive"))).findings == ()
    assert RULE(picture(gone(liveness="frozen"))).findings == ()


def test_an_old_page_is_nobodys_alarm():
    old = ranks(liveness="dead", heartbeat_age_seconds=3601.0)
    assert RULE(picture(old)).findings == ()
