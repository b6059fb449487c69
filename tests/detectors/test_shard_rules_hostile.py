"""The shard rules on what servers and pages may bring: nothing, nonsense, one of many, new ones."""

from __future__ import annotations

import dataclasses
import random

import pytest

from detectors import cold_shard, key_namespace_split, orphaned_chunks, shard_saturated, shard_skew
from exporters.snapshot import Operation, Shard
from tests.detectors.fleet_pictures import CHUNK, SIZE, facts, picture, ranks, shard, url
from tests.detectors.pictures import NOW

RULES = {
    module.NAME: module.RULE
    for module in (cold_shard, key_namespace_split, orphaned_chunks, shard_saturated, shard_skew)
}
NONSENSE = ("", "soon", -1, float("nan"), float("inf"), None, True, [], {}, {"keys": "many"}, b"x")


def busy(rank, ago, share, **info):
    """A shard with a main thread, keys and an age, `ago` seconds before now."""
    spent = 100 + share * (20 - ago)
    made = shard(
        rank,
        eventloop_duration_sum=int(spent * 1e6),
        eventloop_cycles=int(1000 + 100 * (20 - ago)),
        cmdstat_get={"usec": int(spent * 5e5), "calls": 9},
        **info,
    )
    return dataclasses.replace(made, read_seconds=NOW - ago)


def answered(process, answers):
    done = tuple(
        Operation("lookup", NOW - 11, NOW - 10, answers[process.rank] * CHUNK, 0, n + 1, 0)
        for n in range(20)
    )
    return dataclasses.replace(process, operations=done)


def fleet(size=SIZE, share=0.1, answers=None, **info):
    """A healthy engine of `size` ranks with a shard each, seen twice, 9 s apart."""
    found = answers or tuple(40 + r for r in range(size))
    known = facts(world_size=size)
    processes = tuple(answered(p, found) for p in ranks(size, known))
    now = picture(processes, tuple(busy(r, 0.0, share, **info) for r in range(size)), size=size)
    before = dataclasses.replace(
        now,
        now_seconds=NOW - 9,
        shards=tuple(busy(r, 9.0, share, **info) for r in range(size)),
    )
    return dataclasses.replace(now, earlier=(before,))


def verdicts(snapshot):
    return {name: rule(snapshot) for name, rule in RULES.items()}


def named(snapshot):
    return sorted({f.id for v in verdicts(snapshot).values() for f in v.findings})


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 64])
def test_health_is_silent_at_any_width(size):
    for name, verdict in verdicts(fleet(size)).items():
        assert (verdict.findings, verdict.abstained) == ((), ""), name


def test_all_restarted_is_a_new_deployment():
    """Their keys are few, their counters began anew, and nobody is behind the others."""
    new = fleet(uptime_in_seconds=4, run_id="new", db0={"keys": 3})
    old = fleet().earlier
    assert named(dataclasses.replace(new, earlier=old)) == []
    assert (
        "seen for less than"
        in verdicts(dataclasses.replace(new, earlier=old))["shard-saturated"].abstained
    )


def test_one_of_several_seen_is_no_clean_bill():
    one = fleet()
    one = dataclasses.replace(one, shards=one.shards[:1])
    told = verdicts(one)
    assert named(one) == []
    assert all(told[name].abstained for name in ("cold-shard", "shard-skew"))


def test_versions_may_differ_between_shards():
    """9.1 tells its active time, 8.1 with IO threads no more than its loop, 7.0 its CPU."""
    times = {"used_active_time_main_thread", "used_cpu_user_main_thread"}
    now = fleet(share=0.99)
    figures = []
    for made in (now, now.earlier[0]):
        new, threaded, old, same = made.shards
        spent = made.shards[0].info["eventloop_duration_sum"] / 1e6
        bare = {n: v for n, v in old.info.items() if not n.startswith("eventloop")}
        cpu = {"used_cpu_user_main_thread": spent, "used_cpu_sys_main_thread": 0.0}
        figures.append(
            (
                dataclasses.replace(new, info={**new.info, "used_active_time_main_thread": spent}),
                dataclasses.replace(threaded, io_threads=4),
                dataclasses.replace(old, info={**bare, **cpu}),
                dataclasses.replace(same, info={n: v for n, v in bare.items() if n not in times}),
            )
        )
    before = dataclasses.replace(now.earlier[0], shards=figures[1])
    verdict = RULES["shard-saturated"](
        dataclasses.replace(now, shards=figures[0], earlier=(before,))
    )
    assert [f.shard for f in verdict.findings] == [url(0), url(2)]  # not the two that cannot tell


@pytest.mark.parametrize("seed", range(8))
def test_nonsense_raises_nowhere_and_accuses_nobody(seed):
    """Fields dropped and replaced at random, shards gone or shut, pages without their facts."""
    chance = random.Random(seed)
    for _ in range(60):
        now = fleet(chance.choice((1, 2, 4)))

        def spoiled(made):
            kind = chance.random()
            if kind < 0.1:
                return Shard(made.url, False, chance.choice(("timeout", "auth", "")))
            info = {n: v for n, v in made.info.items() if chance.random() > 0.2}
            for name in list(info):
                if name != "run_id" and not name.startswith("db") and chance.random() < 0.2:
                    info[name] = chance.choice(NONSENSE)
            return dataclasses.replace(made, info=info)

        def worn(process):
            info = {n: v for n, v in process.info.items() if chance.random() > 0.1}
            return dataclasses.replace(process, info=info, shard=chance.choice((process.shard, "")))

        engines = tuple(
            dataclasses.replace(e, processes=tuple(map(worn, e.processes))) for e in now.engines
        )
        spoilt = dataclasses.replace(now, engines=engines, shards=tuple(map(spoiled, now.shards)))
        assert named(spoilt) == []
        for verdict in verdicts(spoilt).values():
            assert bool(verdict.abstained) == bool(verdict.reason)


def test_nothing_at_all_abstains_by_name():
    empty = dataclasses.replace(picture(()), engines=())
    assert all(v.abstained and v.reason for v in verdicts(empty).values())
    nobody = dataclasses.replace(fleet(), shards=())
    told = verdicts(nobody)
    assert all(told[n].abstained for n in ("cold-shard", "shard-skew"))
