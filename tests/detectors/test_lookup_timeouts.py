"""lookup-timeouts: a plateau at a configured timeout against the density beside it."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import thresholds as t
from detectors.lookup_timeouts import RULE
from exporters import reasons
from exporters.snapshot import Operation
from tests.detectors.client_pictures import INFO, LOOKUP_SECONDS, series
from tests.detectors.pictures import NOW, worker


def _lookups(*durations, ended=1.0, timeouts=None, kind="lookup"):
    operations = tuple(Operation(kind, NOW - ended - d, NOW - ended, 0, 0, 0, 0) for d in durations)
    info = INFO if timeouts is None else {**INFO, "timeouts": timeouts}
    made = dataclasses.replace(worker(0, 1), roles=("scheduler",), rank=None, info=info)
    return series(dataclasses.replace(made, operations=operations), count=1)


ON = LOOKUP_SECONDS
SHORT = 0.01


def test_lookups_that_all_wait_it_out():
    [finding] = RULE(_lookups(*[ON * 1.004] * 16)).findings
    assert (finding.id, finding.rank, finding.severity) == ("lookup-timeouts", None, "critical")
    assert "16 of 16 lookups of the scheduler" in finding.summary
    assert "3 s" in finding.summary
    assert finding.cause == "lookup_seconds"


@pytest.mark.parametrize(("off", "fires"), [(0.049, True), (0.051, False)])
@pytest.mark.parametrize("side", [-1, 1])
def test_within_five_percent(off, fires, side):
    assert bool(RULE(_lookups(*[ON * (1 + side * off)] * 5)).findings) == fires


@pytest.mark.parametrize(("beside", "fires"), [(0, True), (1, True), (4, True), (5, False)])
def test_five_times_as_dense_as_beside_it(beside, fires):
    """10 on it, by width against twice the width beside: 20 / beside."""
    picture = _lookups(*[ON] * 10, *[ON * 1.1] * beside)
    assert bool(RULE(picture).findings) == fires


def test_what_is_far_off_does_not_count_beside_it():
    [finding] = RULE(_lookups(*[ON] * 10, *[ON * 1.16] * 50, *[ON * 0.84] * 50)).findings
    assert finding.severity == "warning"


@pytest.mark.parametrize(("healthy", "severity"), [(5, "critical"), (6, "warning")])
def test_half_of_all_lookups_is_critical(healthy, severity):
    [finding] = RULE(_lookups(*[ON] * 5, *[SHORT] * healthy)).findings
    assert finding.severity == severity


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_cannot_be_told(count):
    verdict = RULE(_lookups(*[ON] * count, *[SHORT] * 20))
    if count < t.PLATEAU_LOOKUPS:
        assert (verdict.findings, verdict.reason) == ((), reasons.TOO_FEW)
    else:
        assert verdict.findings


@pytest.mark.parametrize("picture", [_lookups(), _lookups(*[SHORT] * 200)])
def test_short_ones_and_none_are_silent_and_decided(picture):
    verdict = RULE(picture)
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_the_timeout_is_the_one_on_the_page():
    assert RULE(_lookups(*[0.75] * 9, timeouts={"lookup_seconds": 0.75})).findings
    assert RULE(_lookups(*[3.0] * 9, timeouts={"lookup_seconds": 0.75})).findings == ()
    assert RULE(_lookups(*[3.0] * 9, timeouts={})).findings == ()
    assert RULE(_lookups(*[0.0] * 9, timeouts={"lookup_seconds": 0})).findings == ()


@pytest.mark.parametrize(("share", "fires"), [(0.99, True), (1.01, False)])
def test_when_the_last_is_long_ago_it_is_over(share, fires):
    ended = t.PLATEAU_RECENT_TIMEOUTS * ON * share
    assert bool(RULE(_lookups(*[ON] * 9, ended=ended)).findings) == fires


def test_old_ones_are_over_and_loads_are_no_lookups():
    slow = {"lookup_seconds": 30.0}
    for ended, fires in ((0.99, True), (1.01, False)):
        picture = _lookups(*[30.0] * 9, timeouts=slow, ended=t.PLATEAU_WINDOW_SECONDS * ended)
        assert bool(RULE(picture).findings) == fires
    assert RULE(_lookups(*[ON] * 9, kind="load")).findings == ()
