"""shard-skew: more keys than an equal share, and enough of them."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.shard_skew import RULE
from exporters import reasons
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


def test_two_ranks_on_one_shard_are_two_shares():
    *alone, last = ranks()
    shared = (*alone, dataclasses.replace(last, shard=url(1)))
    shards = (shard(0, 1000), shard(1, 2000), shard(2, 1000))
    assert RULE(picture(shared, shards)).findings == ()


def test_one_shard_for_all_has_no_share_and_a_missing_one_is_said():
    assert not RULE(picture(ranks(info=facts(shard_url="resp://v:1")), (shard(0),))).abstained
    assert RULE(picture(ranks(), (shard(0), shard(1)))).reason == reasons.NOT_ASKED
