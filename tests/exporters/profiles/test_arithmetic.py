"""Unions, overlaps, waits and joins against what a slow, plain computation gives."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

import numpy as np

from detectors.late_in_profile import CLEAR
from exporters.profile import LateRank
from exporters.readers.profiles import intervals
from exporters.readers.profiles import table as t
from exporters.readers.profiles.joined import Joined
from exporters.readers.profiles.late import late_rank
from exporters.readers.profiles.load import Recording
from exporters.readers.profiles.names import OP_INDEX
from exporters.readers.profiles.subgroups import by_ends
from exporters.readers.profiles.waits import waits_of


@pytest.mark.parametrize("seed", range(20))
def test_intervals(seed: int) -> None:
    draw = random.Random(seed)
    pairs = [(a, a + draw.randint(0, 9)) for a in (draw.randint(0, 60) for _ in range(12))]
    start, end = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    inside = {x for a, b in pairs for x in range(a, b)}
    union = intervals.union(start, end)
    assert {x for a, b in zip(*union, strict=True) for x in range(a, b)} == inside
    assert (union[0][1:] > union[1][:-1]).all()
    free = intervals.gaps(*union, 0, 80)
    assert {x for a, b in zip(*free, strict=True) for x in range(a, b)} == set(range(80)) - inside
    a, b = np.array([5]), np.array([41])
    assert intervals.overlap(*union, a, b)[0] == len(inside & set(range(5, 41)))
    assert intervals.covered(*union, np.array([-5, 0, 100])).tolist() == [
        0,
        0,
        len(inside),
    ]


def test_nothing_at_all() -> None:
    none = np.empty(0, dtype=np.int64)
    assert [len(x) for x in intervals.union(none, none)] == [0, 0]
    assert intervals.gaps(none, none, 3, 7)[0].tolist() == [3]
    assert intervals.overlap(none, none, np.array([1]), np.array([5])).tolist() == [0]
    assert [len(x) for x in t.distinct(none)] == [0, 0]


@pytest.mark.parametrize("spread", [10, 10**12])
def test_distinct_is_unique(spread: int) -> None:
    values = np.random.default_rng(3).integers(-spread, spread, 500)
    expected = np.unique(values, return_inverse=True)
    for got, want in zip(t.distinct(values), expected, strict=True):
        assert (got == want).all()


def group(op: str, start: list[list[int]], end: list[list[int]]) -> Joined:
    count = len(start)
    return Joined(
        "g",
        tuple(range(len(start[0]))),
        len(start[0]),
        np.full(count, OP_INDEX[op], dtype=np.int8),
        np.array(start, dtype=np.int64) * 1_000_000,
        np.array(end, dtype=np.int64) * 1_000_000,
        0,
    )


def test_symmetric_waits_need_no_clock() -> None:
    # Rank 1 comes 3 ms late, and its clock is 500 ms ahead.
    waits = waits_of(group("all_gather", [[0, 503], [20, 523]], [[5, 505], [25, 525]]), False)
    assert waits.total().tolist() == pytest.approx([0.006, 0.0])
    assert waits.charged().tolist() == pytest.approx([0.0, 0.006])
    assert waits.by_skew is None


def test_rooted_waits_go_by_start_and_need_a_clock() -> None:
    # The root is late: the receiver's wait is the skew, though durations name the receiver.
    broadcast = group("broadcast", [[3, 0], [23, 20]], [[4, 5], [24, 25]])
    told = waits_of(broadcast, True)
    assert told.total().tolist() == pytest.approx([0.0, 0.006])
    assert told.charged().tolist() == pytest.approx([0.006, 0.0])
    assert waits_of(broadcast, False).without_basis == 2
    assert waits_of(broadcast, False).charged().tolist() == [0.0, 0.0]


def test_clocks_that_differ_are_seen_from_the_ends() -> None:
    # Nobody leaves an all-gather 80 ms before another has come.
    ahead = group("all_gather", [[0, 100], [50, 150]], [[20, 120], [70, 170]])
    waits = waits_of(ahead, True)
    assert not waits.clock.shared
    assert "leaves before the last has come" in waits.clock.reason
    assert waits.by_skew is None


def recording(whole: Joined) -> Recording:
    nothing = t.table_of({"start_ns": []})
    return Recording(nothing, (), (), whole.ranks, 0, True, True, t.Device(), (), ())


def late_of(delays_ms: list[tuple[int, int]], ranks: int = 8) -> LateRank:
    """Collectives in which one rank each comes late: (rank, ms)."""
    start = [
        [100 * i + (ms if r == rank else 0) for r in range(ranks)]
        for i, (rank, ms) in enumerate(delays_ms)
    ]
    end = [[100 * i + ms + 1] * ranks for i, (_, ms) in enumerate(delays_ms)]
    whole = group("all_gather", start, end)
    found = late_rank(recording(whole), [waits_of(whole, True)], 1.0, CLEAR)
    assert found is not None
    return found


def test_a_rank_must_come_last_often_and_not_only_cost_most() -> None:
    # 61% of the wait, but last to half of the collectives that hold most of it.
    often = [(0, 2)] * 20 + [(1 + i % 7, 1) for i in range(26)]
    late = late_of(often)
    assert (late.rank, late.charged_share > 0.6, late.chance < 1e-3) == (0, True, True)
    assert late.last_share == pytest.approx(0.5)
    assert not late.is_clear
    assert late_of([(0, 2)] * 30 + [(1 + i % 7, 1) for i in range(10)]).is_clear


def test_too_few_collectives_name_nobody() -> None:
    assert not late_of([(0, 2)] * 9, ranks=2).is_clear
    assert late_of([(0, 2)] * 12, ranks=2).is_clear


def test_what_the_others_lose_is_per_rank() -> None:
    late = late_of([(3, 2)] * 30)
    assert late.charged_seconds == pytest.approx(30 * 7 * 0.002)
    assert late.lost_share == pytest.approx(0.06)
    assert late.agrees


def test_two_halves_on_one_stream_are_not_one_group() -> None:
    # The second half comes and goes 0 to 4 ms after the first: no offset of a clock does that.
    start = [[40 * i, 1 + 40 * i, 2 + 40 * i, 9 + 40 * i + i % 5] for i in range(30)]
    end = [[3 + 40 * i, 3 + 40 * i, *[12 + 40 * i + i % 5] * 2] for i in range(30)]
    parts = by_ends(group("all_reduce", start, end), True)
    assert [(p.ranks, len(p)) for p in parts] == [((0, 1), 30), ((2, 3), 30)]
    (untold,) = by_ends(group("all_reduce", start, end), False)
    assert (len(untold), "does not say who belongs" in untold.problem) == (0, True)


def test_one_group_stays_one() -> None:
    start = [[0 + 40 * i, 1 + 40 * i, 2 + 40 * i, 9 + 40 * i] for i in range(30)]
    end = [[12 + 40 * i] * 4 for i in range(30)]
    whole = group("all_reduce", start, end)
    assert by_ends(whole, True) == [whole]
