"""rank-silent: frozen, dead and missing are told apart; what is only unseen is not accused."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import thresholds as t
from detectors.rank_silent import RULE
from exporters import reasons
from tests.detectors.pictures import NOW, engine, group_with_open, opened, snapshot, worker


def _workers(size, **of_rank_1):
    return tuple(worker(r, size, **(of_rank_1 if r == 1 else {})) for r in range(size))


def _verdict(size, processes, *open_now):
    return RULE(snapshot(engine(size, (group_with_open(size, open_now),), None, processes)))


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("state", ["frozen", "dead"])
def test_a_silent_worker_is_named_with_its_state(size, state):
    [finding] = _verdict(size, _workers(size, liveness=state, heartbeat_age_seconds=4.2)).findings
    assert (finding.id, finding.rank, finding.severity) == ("rank-silent", 1, "critical")
    assert state in finding.summary and "101" in finding.summary
    assert finding.since_seconds == pytest.approx(4.2)


def test_who_waits_for_it_is_told():
    [finding] = _verdict(
        4, _workers(4, liveness="frozen", heartbeat_age_seconds=9.0), opened(8.5, (0, 2, 3), (1,))
    ).findings
    assert "3 ranks wait" in finding.summary
    assert "ranks 0, 2, 3 in all_gather" in finding.evidence[1].text


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_healthy_engine_is_silent(size):
    verdict = _verdict(size, _workers(size), opened(0.01, (0,), (1,)))
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_an_engine_that_is_gone_as_a_whole_is_no_silent_rank():
    gone = tuple(worker(r, 2, liveness="dead", heartbeat_age_seconds=90.0) for r in range(2))
    verdict = _verdict(2, gone)
    assert (verdict.findings, verdict.reason) == ((), reasons.NO_WRITER)


def test_a_dead_worker_beside_a_living_scheduler_is_named():
    scheduler = dataclasses.replace(worker(0, 1), roles=("scheduler",), rank=None)
    dead = worker(0, 1, liveness="dead", heartbeat_age_seconds=5.0)
    assert [f.rank for f in _verdict(1, (scheduler, dead)).findings] == [0]


def test_the_longest_silence_comes_first():
    processes = (
        worker(0, 3, liveness="dead", heartbeat_age_seconds=5.0),
        worker(1, 3, liveness="dead", heartbeat_age_seconds=9.0),
        worker(2, 3),
    )
    assert [f.rank for f in _verdict(3, processes).findings] == [1, 0]


@pytest.mark.parametrize(("waited", "fires"), [(0.99, False), (1.0, True)])
def test_a_rank_without_a_page_is_accused_only_when_others_wait_for_it(waited, fires):
    without = tuple(w for w in _workers(3) if w.rank != 1)
    seconds = t.MISSING_WAIT_SECONDS * waited
    verdict = _verdict(3, without, opened(seconds, (0, 2), (1,)))
    assert [f.rank for f in verdict.findings] == ([1] if fires else [])
    if fires:
        assert "missing" in verdict.findings[0].summary
    assert _verdict(3, without).findings == ()


def _in_step(size, inside="load", **of_rank_1):
    """Every rank is in a step; rank 1 inside a load since 12 s."""
    marks = {"step_started": NOW - 13, "step_finished": NOW - 14}
    own = {**marks, f"{inside}_started": NOW - 12} if inside else marks
    return tuple(
        worker(r, size, marks=own if r == 1 else marks, **(of_rank_1 if r == 1 else {}))
        for r in range(size)
    )


@pytest.mark.parametrize(("waited", "fires"), [(0.99, False), (1.0, True)])
def test_a_rank_that_runs_and_stays_away_is_named_with_what_it_is_inside_of(waited, fires):
    seconds = t.ABSENT_WAIT_SECONDS * waited
    findings = _verdict(4, _in_step(4), opened(seconds, (0, 2, 3), (1,))).findings
    assert [f.rank for f in findings] == ([1] if fires else [])
    if fires:
        assert "absent: it runs, but 3 ranks wait" in findings[0].summary
        assert "inside a load" in findings[0].summary
        assert findings[0].evidence[1].value == pytest.approx(12)


def test_one_that_is_inside_nothing_known_is_named_all_the_same():
    [finding] = _verdict(2, _in_step(2, inside=""), opened(11.0, (0,), (1,))).findings
    assert "1 rank waits" in finding.summary and "inside" not in finding.summary


def test_a_long_wait_outside_of_a_step_is_start_up():
    assert _verdict(2, _workers(2), opened(60.0, (0,), (1,))).findings == ()


def test_who_waits_for_a_frozen_rank_is_not_accused_as_well():
    processes = _in_step(3, liveness="frozen", heartbeat_age_seconds=20.0)
    found = _verdict(3, processes, opened(19.0, (0,), (1, 2))).findings
    assert [f.rank for f in found] == [1]
