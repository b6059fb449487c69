"""shard-skew: more keys than an equal share, and enough of them."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.shard_skew import RULE
from exporters import reasons
from exporters.snapshot import KeySample
from tests.detectors.fleet_pictures import SIZE, facts, picture, ranks, shard, url


def fleet(keys, usual=1000, processes=None):
    shards = tuple(shard(r, keys if r == 1 else usual) for r in range(SIZE))
    return picture(processes or ranks(), shards)


def test_it_is_named_against_its_share():
    [finding] = RULE(fleet(4000)).findings
    assert (finding.shard, finding.rank) == (url(1), 1)
    assert "57%" in finding.summary and "25%" in finding.summary


@pytest.mark.parametrize("keys", [0, 1000, 1200])
def test_a_share_or_less_is_none(keys):
    assert RULE(fleet(keys)).findings == ()


def test_few_keys_are_chance():
    assert RULE(fleet(20, usual=2)).findings == ()


def two(full, other, **info):
    both = ranks(2, facts(world_size=2))
    return picture(both, (shard(0, full), shard(1, other, **info)), size=2)


def test_what_began_anew_makes_no_other_too_full():
    assert RULE(two(1000, 900)).findings == ()
    verdict = RULE(two(1000, 100, uptime_in_seconds=300))
    assert (verdict.findings, verdict.abstained) == ((), "")
    half = [shard(r, 20, 300) if r % 2 else shard(r, 1000) for r in range(SIZE)]
    assert RULE(picture(ranks(), tuple(half))).findings == ()


def test_of_two_shards_either_may_be_off_but_for_keys_that_are_no_chunks():
    assert RULE(two(1000, 100)).reason == reasons.CANNOT_TELL
    full, other = two(1000, 100).shards
    sample = KeySample({"0": 100, "other": 900}, {}, 1.0, 1.0)
    seen = dataclasses.replace(full, key_sample=sample)
    [finding] = RULE(dataclasses.replace(two(1000, 100), shards=(seen, other))).findings
    assert (finding.shard, finding.cause) == (url(0), "foreign-keys")
    assert "900 of them are no chunks" in finding.summary


def test_two_ranks_on_one_shard_are_two_shares():
    *alone, last = ranks()
    shared = (*alone, dataclasses.replace(last, shard=url(1)))
    shards = (shard(0, 1000), shard(1, 2000), shard(2, 1000))
    assert RULE(picture(shared, shards)).findings == ()


def test_one_shard_for_all_has_no_share_and_a_missing_one_is_said():
    assert not RULE(picture(ranks(info=facts(shard_url="resp://v:1")), (shard(0),))).abstained
    assert RULE(picture(ranks(), (shard(0), shard(1)))).reason == reasons.NOT_ASKED
