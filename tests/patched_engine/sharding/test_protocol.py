"""The proof: every pattern, every single fault, every pair of them, on the shipped protocol."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patched_engine.sharding import record
from patched_engine.sharding.record import Record, agree, unpack
from tests.patched_engine.sharding.ranks import check, run


def patterns(chunks: int):
    """Which chunks can be read, of a prompt of so many that the lookup has found."""
    return itertools.product((True, False), repeat=chunks)


def points(ranks) -> list[tuple[int, int]]:
    """Every (rank, action) of a run: where a fault can be."""
    return [(r, n) for r, rank in enumerate(ranks) for n in range(1, rank.actions + 1)]


def one(world_size: int, chunks: int, first: int = 0) -> int:
    """Every pattern with every single fault; the number of runs."""
    runs = 0
    for readable in patterns(chunks):
        healthy = run(world_size, first, readable)
        check(healthy, first, readable)
        for fault in points(healthy):
            judge(run(world_size, first, readable, [fault]), first, readable)
            runs += 1
    return runs


def judge(ranks, first, readable) -> None:
    """After a failed collective every rank has failed; after anything else all agree."""
    if any(rank.raised is not None for rank in ranks):
        assert all(rank.raised is not None or rank.ended is not None for rank in ranks)
    else:
        check(ranks, first, readable)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("chunks", range(9))
def test_every_pattern_and_every_single_fault(world_size, chunks):
    assert one(world_size, chunks) > 0


@pytest.mark.parametrize("chunks", range(9))
def test_every_pattern_and_every_single_fault_of_four_ranks(chunks):
    assert one(4, chunks) > 0


@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_a_load_that_begins_within_a_round(first):
    assert one(4, 7, first) > 0


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_pair_of_faults(world_size):
    for chunks in range(5):
        for readable in patterns(chunks):
            for pair in itertools.combinations(points(run(world_size, 0, readable)), 2):
                judge(run(world_size, 0, readable, pair), 0, readable)


def test_a_failed_collective_is_never_skipped():
    """The rank raises; it does not go on to the next one."""
    healthy = run(2, 0, [True] * 4)
    for rank, number in points(healthy):
        ranks = run(2, 0, [True] * 4, [(rank, number)])
        if ranks[rank].raised is not None:
            assert ranks[rank].ended is None


def test_ranks_that_mean_other_chunks_load_nothing_and_say_so():
    ranks = run(3, 0, [True] * 6, fingerprints=[1, 1, 2])
    for rank in ranks:
        assert rank.ended is not None and rank.ended.end_chunk == 0
        assert rank.ended.mismatch == "rank 2 has another fingerprint than rank 0"


@settings(max_examples=300, deadline=None)
@given(
    world_size=st.integers(1, 16),
    readable=st.lists(st.sampled_from([True] * 30 + [False]), max_size=200),
    data=st.data(),
)
def test_larger_ones(world_size, readable, data):
    first = data.draw(st.integers(0, len(readable)))
    healthy = run(world_size, first, readable)
    check(healthy, first, readable)
    faults = data.draw(st.lists(st.sampled_from(points(healthy)), max_size=3))
    judge(run(world_size, first, readable, faults), first, readable)


def test_a_record_is_64_bytes_and_comes_back():
    sent = Record(3, 1, 4, 1000, (1 << 64) - 1, 17, record.FAILED)
    assert len(sent.pack()) == record.RECORD_BYTES
    assert unpack(sent.pack()) == sent


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"sscpload", b"x" * 65])
def test_what_is_no_record_is_none_and_ends_the_load(data):
    mine = Record(0, 0, 2, 8, 1, 8, record.OK)
    assert unpack(data) is None
    verdict = agree([mine.pack(), data], mine)
    assert verdict.end_chunk == 2 and verdict.mismatch == "rank 1 sent no record"


@pytest.mark.parametrize("reach", [1, 9, -1])
def test_a_reach_outside_of_the_load_ends_it(reach):
    mine = Record(0, 0, 2, 8, 1, 8, record.OK)
    other = Record(0, 0, 2, 8, 1, reach, record.OK)
    assert agree([mine.pack(), other.pack()], mine).end_chunk == 2
