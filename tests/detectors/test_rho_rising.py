"""rho-rising: said before the queue grows, and not of a burst that passes."""

from __future__ import annotations

import pytest

from detectors import thresholds as t
from detectors.rho_rising import RULE
from exporters import reasons
from tests.detectors.traffic import percentile, points, queue, snapshot

SERVICE = 0.3
MINUTE = 60.0
RAMP_SECONDS = 600.0


def at_rho(rho):
    return lambda at: rho(at) / SERVICE


def ramp(at):
    return 0.2 + 0.9 * min(at, RAMP_SECONDS) / RAMP_SECONDS


def judged(rho, until, seed=1, **model):
    requests = queue(at_rho(rho), until, SERVICE, seed)
    return RULE(snapshot(points(requests, until), **model))


def first_warning(requests, seconds):
    """When the rule first speaks, looked at each 15 s; None if never."""
    for at in range(15, int(seconds) + 1, 15):
        if RULE(snapshot(points(requests, at))).findings:
            return float(at)
    return None


def test_a_ramp_is_warned_of():
    verdict = judged(ramp, 480)
    [finding] = verdict.findings
    assert finding.severity == "warning"
    assert (finding.rank, finding.shard) == (None, None)
    assert finding.since_seconds == t.RHO_HELD_SECONDS
    level, to_one = finding.evidence
    assert level.limit < level.value == pytest.approx(ramp(480), abs=0.15)
    assert to_one.value <= to_one.limit
    assert "rises: at this pace it reaches 1 in" in finding.summary


def test_past_one_it_is_critical():
    [finding] = judged(lambda at: 0.4 + at / 600, 720).findings
    assert finding.severity == "critical"
    assert "without end" in finding.summary


@pytest.mark.parametrize("calm_seconds", [0, 300])
@pytest.mark.parametrize("seed", range(6))
def test_the_warning_precedes_the_bad_minutes_of_a_ramp(seed, calm_seconds):
    """Before rho is 0.9, and before the first minute whose p99 is five times that at rho 0.2. In
    an ideal queue it doubles by rho 0.55, which no rule that waits for 0.6 can precede."""
    rho = at_rho(lambda at: ramp(max(0, at - calm_seconds)))
    end = calm_seconds + RAMP_SECONDS
    requests = queue(rho, end, SERVICE, seed)
    calm = percentile(queue(at_rho(lambda at: 0.2), 3600, SERVICE, seed), 0.99)
    bad = next(
        at
        for at in range(calm_seconds, int(end), 60)
        if percentile([r for r in requests if at <= r.arrived < at + MINUTE], 0.99) > 5 * calm
    )
    warned = first_warning(requests, end)
    assert warned is not None
    assert ramp(warned - calm_seconds) < 0.9
    assert warned <= bad, (warned, bad)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [30, 90])
def test_a_burst_that_the_queue_absorbs_is_not_warned_of(seed, length):
    burst = at_rho(lambda at: 1.1 if 400 <= at < 400 + length else 0.3)
    assert first_warning(queue(burst, 900, SERVICE, seed), 900) is None


@pytest.mark.parametrize("rho", [0.3, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_a_steady_rate_is_not_warned_of(rho, seed):
    assert first_warning(queue(at_rho(lambda at: rho), 1800, SERVICE, seed), 1800) is None


@pytest.mark.parametrize(
    "rho",
    [
        lambda at: 1.1 - 0.9 * at / 900,  # falls
        lambda at: 0.2 + 0.3 * at / 900,  # rises slowly, and stays low
        lambda at: max(0.05, 0.5 - (900 - at) / 900),  # rises fast, and is low yet
        lambda at: 0.3 if at < 810 else 0.55,  # a step that is low still
    ],
    ids=["falling", "low", "low yet", "step"],
)
@pytest.mark.parametrize("seed", range(3))
def test_turning_the_evidence_turns_the_verdict(rho, seed):
    verdict = judged(rho, 900, seed)
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_what_it_needs():
    assert RULE(snapshot(())).findings == ()
    # Under 30 requests or 2 minutes there is no rho at all.
    assert judged(lambda at: 0.9, 100).abstained == ""
    assert judged(lambda at: 0.01, 600).abstained == ""
    # High, and not long seen: that is said.
    verdict = judged(lambda at: 0.9, 200)
    assert (verdict.findings, verdict.reason) == ((), reasons.TOO_FEW)
    assert "a trend needs 300 s" in verdict.abstained
    assert RULE(snapshot((), unseen="it decodes too")).abstained == ""
    assert judged(ramp, 480, unseen="it decodes too").findings == ()


def test_a_high_rho_that_does_not_rise_is_no_finding_of_this_rule():
    calm = [judged(lambda at: 0.8, 900, seed).findings for seed in range(10)]
    assert sum(bool(found) for found in calm) <= 2
