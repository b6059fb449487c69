"""key-namespace-split: two fingerprints among those that share a cache."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.key_namespace_split import RULE
from tests.detectors.fleet_pictures import facts, picture, ranks


def engine(name, fingerprint, **changes):
    info = facts(key_fingerprint=fingerprint, **changes)
    made = picture(ranks(info=info)).engines[0]
    processes = tuple(dataclasses.replace(p, engine_id=name) for p in made.processes)
    return dataclasses.replace(made, engine_id=name, processes=processes)


def seen(*engines):
    return dataclasses.replace(picture(()), engines=engines)


def test_two_pods_with_two_seeds_are_both_named():
    found = RULE(seen(engine("a", "aa"), engine("b", "bb"))).findings
    assert [f.engine_id for f in found] == ["a", "b"]
    assert all(f.severity == "critical" for f in found)


def test_of_three_the_odd_one():
    found = RULE(seen(engine("a", "aa"), engine("b", "bb"), engine("c", "aa"))).findings
    assert [f.engine_id for f in found] == ["b"]
    assert "bb in 4" in found[0].evidence[0].text


def test_one_rank_of_one_pod():
    whole = engine("a", "aa")
    odd = dataclasses.replace(whole.processes[2], info=facts(key_fingerprint="zz"))
    processes = (*whole.processes[:2], odd, whole.processes[3])
    [finding] = RULE(seen(dataclasses.replace(whole, processes=processes))).findings
    assert finding.rank == 2


def test_a_page_left_by_a_life_with_another_seed_is_nobodys_fault():
    dead = engine("a", "zz")
    processes = tuple(dataclasses.replace(p, liveness="dead") for p in dead.processes)
    left = dataclasses.replace(dead, processes=processes)
    assert RULE(seen(left, engine("b", "bb"))).findings == ()


def test_one_rank_of_four_on_two_shards():
    info = [facts(shard_url=f"resp://v-{r % 2}", key_fingerprint="aa") for r in range(4)]
    info[1]["key_fingerprint"] = "zz"
    processes = tuple(
        dataclasses.replace(p, info=known) for p, known in zip(ranks(), info, strict=True)
    )
    assert [f.rank for f in RULE(picture(processes)).findings] == [1]


@pytest.mark.parametrize(
    "other",
    [
        engine("b", "aa"),
        engine("b", "bb", model="another"),
        engine("b", "bb", chunk_tokens=512),
        engine("b", "bb", shard_url="resp://w-{rank}:6379"),
        engine("b", ""),  # its cache engine is not built yet
    ],
)
def test_who_shares_no_cache_may_name_as_he_likes(other):
    verdict = RULE(seen(engine("a", "aa"), other))
    assert (verdict.findings, verdict.abstained) == ((), "")
