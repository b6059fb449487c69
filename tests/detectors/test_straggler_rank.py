"""straggler-rank on both sides of each of its limits."""

from __future__ import annotations

import math

import pytest

from detectors import thresholds as t
from detectors.straggler_rank import RULE, last_share_limit
from exporters import reasons
from tests.detectors.pictures import NOW, engine, group, quiet, second, snapshot

END = int(NOW)
SPAN = t.STRAGGLER_WINDOW_SECONDS + t.STRAGGLER_WINDOWS - 1
LOST = t.LOST_WALL_SHARE


def _verdict(seconds, size=4, **changes):
    return RULE(snapshot(engine(size, (group(seconds, size, **changes),))))


def _late(begin=END - 60, end=END, size=4, late=2, **changes):
    return [second(at, size, late, **changes) for at in range(begin, end)]


@pytest.mark.parametrize("size", range(2, 9))
def test_a_late_rank_is_named_with_the_time_lost(size):
    late = size - 1
    [finding] = _verdict(_late(size=size, late=late, lost_seconds=0.2), size).findings
    assert (finding.id, finding.rank, finding.engine_id) == ("straggler-rank", late, "e")
    assert finding.severity == "critical"
    lost = {e.name: e for e in finding.evidence}["lost_wall_share"]
    assert lost.value == pytest.approx(0.2)
    assert (lost.limit, lost.unit) == (LOST, "ratio")
    assert all(e.text for e in finding.evidence)
    assert finding.confidence > 0.9


@pytest.mark.parametrize("size", range(2, 9))
def test_a_healthy_run_is_silent(size):
    verdict = _verdict([quiet(at, size) for at in range(END - 60, END)], size)
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_since_is_the_second_in_which_it_began():
    seconds = [quiet(at, 4) for at in range(END - 100, END - 45)] + _late(END - 45)
    [finding] = _verdict(seconds).findings
    assert finding.since_seconds == pytest.approx(45.5)


@pytest.mark.parametrize(("observed", "fires"), [(SPAN - 1, False), (SPAN, True)])
def test_the_span_observed(observed, fires):
    verdict = _verdict(_late(END - observed))
    assert bool(verdict.findings) == fires
    assert bool(verdict.abstained) != fires
    assert verdict.reason == ("" if fires else reasons.TOO_FEW)


def test_the_second_under_way_is_not_counted():
    verdict = _verdict(_late(END - SPAN + 1, END + 1))
    assert verdict.reason == reasons.TOO_FEW


@pytest.mark.parametrize(("count", "fires"), [(49, False), (50, True)])
def test_the_number_of_collectives(count, fires):
    """In three windows: spread so that each holds the same."""
    busy = _late(END - 30, count=0, last=0, lost_seconds=0.2)
    busy = [quiet(at, 4, 0) for at in (END - 32, END - 31)] + busy
    for i in range(count):
        at = 4 + i % 26  # seconds that all three windows hold
        busy[at] = second(busy[at].second, 4, 2, busy[at].count + 1, busy[at].count + 1)
    verdict = _verdict(busy)
    assert bool(verdict.findings) == fires
    assert (verdict.reason == reasons.TOO_FEW) != fires


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_share_of_last_arrivals(size):
    limit = last_share_limit(size)
    at_limit = math.ceil(limit * 20 - 1e-9)
    assert _verdict(_late(size=size, late=0, last=at_limit), size).findings
    assert not _verdict(_late(size=size, late=0, last=at_limit - 1), size).findings


def test_two_ranks_need_a_larger_share():
    assert last_share_limit(2) > last_share_limit(3)


@pytest.mark.parametrize(
    ("lost", "severity"), [(0.99, None), (1.01, "warning"), (2.01, "critical")]
)
def test_the_wall_lost(lost, severity):
    """In units of the limit; the critical one is twice it."""
    findings = _verdict(_late(lost_seconds=LOST * lost)).findings
    assert [f.severity for f in findings] == ([severity] if severity else [])


def test_all_three_windows_have_to_agree():
    """The oldest window is a second short of its 50 collectives, or of its share."""
    seconds = _late(END - SPAN)
    assert _verdict(seconds).findings
    burst = [quiet(at, 4, 0) for at in range(END - SPAN, END - 2)] + [
        second(at, 4, 2, 200, 200, 2.0) for at in (END - 2, END - 1)
    ]
    assert not _verdict(burst).findings


def test_chance_alone_is_not_enough():
    """At W = 8 a share of 0.6 in 50 is far beyond chance; the p-value guards small W."""
    from detectors.rule import binomial_tail

    assert binomial_tail(30, 50, 1 / 8) < t.STRAGGLER_P_VALUE
    assert binomial_tail(30, 50, 1 / 2) > t.STRAGGLER_P_VALUE


def test_an_idle_engine_is_silent_and_decided():
    verdict = _verdict([quiet(at, 4, 0) for at in range(END - 60, END)])
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_few_collectives_with_long_waits_cannot_be_told():
    seconds = [second(at, 4, 2, 1, 1, 0.5) for at in range(END - 60, END)]
    verdict = _verdict(seconds)
    assert (verdict.findings, verdict.reason) == ((), reasons.TOO_FEW)


@pytest.mark.parametrize("reason", [reasons.MISSING_RANK, reasons.UNJOINED, reasons.ASYNC_ONLY])
def test_it_abstains_from_a_group_that_cannot_be_joined(reason):
    verdict = _verdict(_late(), unseen_reason=reason)
    assert (verdict.findings, verdict.reason) == ((), reason)
    assert reason in verdict.abstained


def test_it_abstains_without_an_engine_or_a_group():
    assert RULE(snapshot()).reason == reasons.NOT_ASKED
    assert RULE(snapshot(engine(4))).reason == reasons.TOO_FEW


def test_the_group_of_all_ranks_with_the_most_collectives_decides():
    busy = group(_late(late=1), 4, "busy")
    rare = group([quiet(at, 4, 1) for at in range(END - 60, END)], 4, "rare")
    half = group(_late(size=2, late=0, count=99, last=99), 2, "half")
    for groups in ((busy, rare, half), (half, rare, busy)):
        [finding] = RULE(snapshot(engine(4, groups))).findings
        assert finding.rank == 1


def test_unjoined_collectives_cost_confidence():
    seconds = _late()
    [sure] = _verdict(seconds).findings
    [less] = _verdict(seconds, unjoined=sum(s.count for s in seconds)).findings
    assert less.confidence == pytest.approx(sure.confidence / 2, abs=0.01)


def test_it_ends_when_the_rank_is_in_time_again():
    seconds = _late(END - 100, END - 31) + [quiet(at, 4) for at in range(END - 31, END)]
    assert not _verdict(seconds).findings


def test_two_engines_are_judged_apart():
    late, healthy = group(_late(), 4), group([quiet(at, 4) for at in range(END - 9, END)], 4)
    verdict = RULE(snapshot(engine(4, (healthy,)), engine(4, (late,))))
    assert [f.rank for f in verdict.findings] == [2]
    assert "engine e: saw 9 s" in verdict.abstained
