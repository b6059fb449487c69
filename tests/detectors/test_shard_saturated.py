"""shard-saturated: the lower bound of a used shard's main thread, over long enough."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.shard_saturated import RULE
from exporters import reasons
from exporters.snapshot import Shard, Verdict
from tests.detectors.fleet_pictures import picture, ranks, shard, url
from tests.detectors.pictures import NOW


def busy(share: float, seconds: float, io_threads: int = 1, commands: float = 0.5, used=True):
    """Rank 1's shard, whose event loop was busy for that share of the time."""

    def at(ago: float) -> Shard:
        spent = 100 + share * (seconds - ago)
        made = shard(
            1,
            eventloop_duration_sum=int(spent * 1e6),
            eventloop_cycles=int(1000 + 100 * (seconds - ago)),
            cmdstat_get={"usec": int((9 + commands * (seconds - ago)) * 1e6), "calls": 9},
        )
        return dataclasses.replace(made, read_seconds=NOW - ago, io_threads=io_threads)

    processes = ranks() if used else ranks(shard="")
    now = picture(processes, (at(0.0),))
    before = dataclasses.replace(now, now_seconds=NOW - seconds, shards=(at(seconds),))
    return dataclasses.replace(now, earlier=(before,))


@pytest.mark.parametrize(
    ("share", "seconds", "severity"),
    [
        (0.86, 9.0, "warning"),
        (0.97, 9.0, "critical"),
        (0.98, 2.0, "critical"),
        (0.90, 2.0, None),  # a burst, as far as a look of two seconds can tell
        (0.84, 9.0, None),
        (0.05, 9.0, None),
    ],
)
def test_how_busy_for_how_long(share, seconds, severity):
    verdict = RULE(busy(share, seconds))
    assert [f.severity for f in verdict.findings] == ([severity] if severity else [])
    assert not verdict.abstained
    for finding in verdict.findings:
        assert (finding.shard, "rank 1 waits" in finding.summary) == (url(1), True)
        assert finding.evidence[0].value >= finding.evidence[0].limit


def test_what_began_just_now_is_told_before_the_long_window_is():
    began = busy(0.99, 2.0)
    idle = busy(0.05, 9.0).earlier[0]
    before = dataclasses.replace(idle, shards=began.earlier[0].shards)
    before = dataclasses.replace(
        before, shards=(dataclasses.replace(before.shards[0], read_seconds=NOW - 9.0),)
    )
    [finding] = RULE(dataclasses.replace(began, earlier=(before, began.earlier[0]))).findings
    assert finding.since_seconds == pytest.approx(2.0)


def test_an_upper_bound_alone_decides_nothing_and_is_said():
    verdict = RULE(busy(0.99, 9.0, io_threads=4, commands=0.4))
    assert (verdict.findings, verdict.reason) == ((), reasons.CANNOT_TELL)
    assert "40%" in verdict.abstained and "99%" in verdict.abstained


def test_a_lower_bound_from_commands_does():
    assert RULE(busy(0.99, 9.0, io_threads=4, commands=0.9)).findings


def test_a_shard_that_nobody_uses_and_one_that_is_down():
    assert RULE(busy(0.99, 9.0, used=False)).reason == reasons.NOT_ASKED
    down = Shard(url(1), False, reasons.TIMEOUT)
    assert RULE(picture(ranks(), (down,))) == Verdict("shard-saturated")
    shut = Shard(url(1), False, reasons.AUTH)
    assert "cannot be asked: auth" in RULE(picture(ranks(), (shut,))).abstained


def test_one_picture_asks_for_another_and_says_that_it_cannot_tell():
    verdict = RULE(picture(ranks(), (shard(1, eventloop_duration_sum=1),)))
    assert (verdict.findings, verdict.again, verdict.reason) == ((), True, reasons.TOO_FEW)
    assert "seen for less than" in verdict.abstained


@pytest.mark.parametrize("kept", [{"run_id", "uptime_in_seconds"}, {"run_id", "eventloop_cycles"}])
def test_a_server_without_the_figures_is_not_called_idle(kept):
    def bare(made):
        return dataclasses.replace(made, info={n: v for n, v in made.info.items() if n in kept})

    now = busy(0.99, 9.0)
    before = dataclasses.replace(now.earlier[0], shards=(bare(now.earlier[0].shards[0]),))
    now = dataclasses.replace(now, shards=(bare(now.shards[0]),), earlier=(before,))
    verdict = RULE(now)
    assert (verdict.findings, verdict.reason) == ((), reasons.TOO_FEW)
    assert "does not tell how busy" in verdict.abstained


def test_counters_that_were_reset_are_no_share():
    now = busy(0.99, 9.0)
    zero = dataclasses.replace(
        now.shards[0], info={**now.shards[0].info, "eventloop_duration_sum": 5}
    )
    verdict = RULE(dataclasses.replace(now, shards=(zero,)))
    assert (verdict.findings, bool(verdict.abstained)) == ((), True)
