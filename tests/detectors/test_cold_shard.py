"""cold-shard: younger than the others by much, and with less than half of their keys."""

from __future__ import annotations

import pytest

from detectors.cold_shard import RULE
from exporters import reasons
from exporters.snapshot import Shard
from tests.detectors.fleet_pictures import SIZE, facts, picture, ranks, shard, url


def fleet(keys=300, uptime=120, others=1000, others_uptime=90_000, **changes):
    shards = tuple(
        shard(r, keys, uptime) if r == 2 else shard(r, others, others_uptime) for r in range(SIZE)
    )
    return picture(ranks(**changes), shards)


def test_it_is_named_with_its_rank():
    [finding] = RULE(fleet()).findings
    assert (finding.shard, finding.rank, finding.severity) == (url(2), 2, "warning")
    assert "300 keys" in finding.summary


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": 501},
        {"uptime": 3601},
        {"others_uptime": 128},  # all began together
        {"keys": 10, "others": 40},  # nobody has a cache yet
        {"info": facts(shard_url="resp://v-0:6379")},  # one for all
    ],
)
def test_turning_any_of_it_turns_the_verdict(changes):
    verdict = RULE(fleet(**changes))
    assert (verdict.findings, verdict.abstained) == ((), "")


@pytest.mark.parametrize("others_uptime", [140, 200, 3000, 90_000])
def test_whatever_began_later_is_cold(others_uptime):
    assert [f.rank for f in RULE(fleet(others_uptime=others_uptime)).findings] == [2]


def test_a_shard_that_is_not_seen_is_said_and_hides_no_cold_one():
    shards = fleet().shards
    assert RULE(picture(ranks(), shards[:2])).reason == reasons.NOT_ASKED
    assert [f.rank for f in RULE(picture(ranks(), shards[1:])).findings] == [2]


def test_with_one_shard_to_see_it_abstains():
    assert RULE(picture(ranks(), (shard(2, 3, 9),))).reason == reasons.NOT_ASKED


def test_a_server_without_the_fields_breaks_nothing():
    for mute in (
        Shard(url(2), True),
        *(shard(2, 3, uptime_in_seconds=said) for said in ("soon", -1)),
    ):
        verdict = RULE(picture(ranks(), (shard(0), shard(1), mute, shard(3))))
        assert (verdict.findings, verdict.reason) == ((), reasons.NOT_ASKED)
