"""progress-stall: requests, a living scheduler, and no step of a prompt."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.progress_stall import RULE
from exporters import reasons
from tests.detectors.fleet_pictures import less, picture, ranks, scheduler, since
from tests.detectors.pictures import NOW


def stalled(still=40.0, unfinished=3, scheduled=0, finished=0, step_seconds=0.1, seconds=2.0):
    counters = {"requests_admitted": 100, "requests_finished": 100 - unfinished}
    counters["scheduled_tokens"] = 5000
    steps = {"steps": 10, "step_nanoseconds": int(step_seconds * 10 * 1e9)}
    processes = (
        *ranks(counters=steps),
        scheduler(counters=counters, marks={"prefill_scheduled": NOW - still}),
    )
    before = less(scheduled_tokens=scheduled, requests_finished=finished)
    return since(picture(processes), seconds, before)


def test_it_is_named_whatever_the_gauges_say():
    [finding] = RULE(stalled()).findings
    assert (finding.severity, finding.since_seconds) == ("critical", 40.0)
    assert "3 requests are unfinished" in finding.summary
    assert all(e.value >= e.limit for e in finding.evidence)


@pytest.mark.parametrize(
    "changes",
    [
        {"still": 29.0},
        {"unfinished": 0},
        {"scheduled": 1},  # it decodes
        {"finished": 1},
        {"step_seconds": 3.0},  # steps are that long here
    ],
)
def test_turning_any_of_it_turns_the_verdict(changes):
    verdict = RULE(stalled(**changes))
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_a_long_step_that_just_ended_is_progress():
    now = stalled()
    busy = tuple(
        dataclasses.replace(p, marks={**p.marks, "step_finished": NOW - 5}) if p.rank == 0 else p
        for p in now.engines[0].processes
    )
    engine = dataclasses.replace(now.engines[0], processes=busy)
    assert RULE(dataclasses.replace(now, engines=(engine,))).findings == ()


def test_a_scheduler_that_never_made_a_step_counts_from_its_start():
    made = scheduler(counters={"requests_admitted": 1}, started_seconds=NOW - 50)
    assert RULE(since(picture((*ranks(), made)), 2.0, lambda p: p)).findings


def test_one_picture_asks_for_another_and_no_scheduler_is_said():
    alone = stalled()
    assert RULE(picture(alone.engines[0].processes)).again
    assert RULE(picture(ranks())).reason == reasons.NOT_ASKED
