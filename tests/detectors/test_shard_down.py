"""shard-down: a shard in use that does not serve, in three pictures, with who uses it."""

from __future__ import annotations

import pytest

from detectors import ALL_RULES
from detectors.shard_down import RULE
from exporters import reasons
from tests.detectors.client_pictures import SHARD, entry, rank, series, shard

DOWN = shard(up=False, reason=reasons.TIMEOUT, info={}, clients=None)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (shard(up=False, reason=reasons.TIMEOUT), "does not answer"),
        (shard(up=False, reason=reasons.CONNECTION_REFUSED), "refuses connections"),
        (shard(up=False, reason=reasons.UNREACHABLE), "cannot be reached"),
        (shard(info={"loading": 1}), "still loading"),
    ],
)
def test_each_way_to_be_down(server, says):
    [finding] = RULE(series(rank(), server)).findings
    assert (finding.id, finding.shard, finding.rank) == ("shard-down", SHARD, None)
    assert says in finding.summary and "rank 1 uses it" in finding.summary
    assert finding.since_seconds == pytest.approx(2.0)


def test_who_uses_it_and_what_waits():
    waiting = entry("exists", 9.0)
    picture = series(rank(pending=(waiting,)), DOWN, others=(rank(0), rank(2, shard="")))
    [finding] = RULE(picture).findings
    assert "ranks 0, 1 use it" in finding.summary
    assert "that are pending: 1, the oldest for 9.0 s" in finding.evidence[1].text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_three_pictures_are_needed_and_asked_for(count):
    verdict = RULE(series(rank(), DOWN, count=count))
    assert (bool(verdict.findings), verdict.again) == (count == 3, count < 3)


@pytest.mark.parametrize("up_at", [0, 1, 2])
def test_a_restart_that_is_over_at_once_is_none(up_at):
    picture = series(rank(), lambda ago: shard() if ago == up_at else DOWN)
    assert RULE(picture).findings == ()


def test_a_shard_that_nobody_uses_is_nobodys_trouble():
    assert RULE(series(rank(shard=""), DOWN)).findings == ()
    assert RULE(series(rank(liveness="dead"), DOWN)).findings == ()


@pytest.mark.parametrize("reason", [reasons.AUTH, reasons.NOT_VALKEY])
def test_a_shard_that_we_may_not_ask_is_not_down(reason):
    verdict = RULE(series(rank(), shard(up=False, reason=reason)))
    assert (verdict.findings, verdict.reason) == ((), reason)


def test_without_a_url_it_was_not_asked_and_without_a_shard_it_is_decided():
    assert RULE(series(rank(shard=""))).reason == reasons.NOT_ASKED
    assert RULE(series(rank(shard="", info={}))).abstained == ""


def test_it_alone_is_named_whatever_waits_for_it():
    pending = (entry("exists", 60.0), entry("get", 60.0, number=8), entry("prefetch", 60.0, 9))
    picture = series(rank(pending=pending), DOWN)
    assert [f.id for rule in ALL_RULES for f in rule(picture).findings] == ["shard-down"]


def test_a_shard_that_serves_is_silent():
    verdict = RULE(series(rank(), shard()))
    assert (verdict.findings, verdict.abstained, verdict.again) == ((), "", False)
