"""The joiner against a brute-force truth: whatever the order, the losses and the restarts."""

from __future__ import annotations

import random

import pytest

from exporters import page_layout as layout
from exporters import reasons
from exporters.collectives import MOST_WAITING, GroupJoiner
from exporters.readers.rings import Entry
from tests.exporters.lockstep import MILLISECOND, Collective, run, truth

SECOND = 1_000_000_000
SEEDS = range(12)


def _joiner(size, incarnation=1):
    joiner = GroupJoiner("g", tuple(range(size)))
    joiner.follow(tuple((incarnation, 0) for _ in range(size)))
    return joiner


def _sums(group):
    """Over all operations: count, waits, charged, last counts, in ns where times."""
    size = len(group.ranks)
    return (
        sum(t.count for t in group.totals),
        [round(sum(t.wait_seconds[i] for t in group.totals) * 1e9) for i in range(size)],
        [round(sum(t.charged_seconds[i] for t in group.totals) * 1e9) for i in range(size)],
        [sum(t.last_count[i] for t in group.totals) for i in range(size)],
    )


def _expected(collectives, size):
    t = truth(collectives, size)
    return t.count, t.wait_ns, t.charged_ns, t.last


def _read_all(joiner, collectives, size, ticks, rng, hidden=frozenset()):
    """Feed what a reader would see at the given times: new records once, open ones again."""
    seen = [0] * size
    still_open = [[] for _ in range(size)]
    for now in ticks:
        order = list(range(size))
        rng.shuffle(order)
        for member in order:
            entries = [c.entry(member, now) for c in still_open[member]]
            again = [c for c in still_open[member] if c.depart[member] > now]
            while seen[member] < len(collectives) and (
                collectives[seen[member]].arrive[member] <= now
            ):
                c = collectives[seen[member]]
                seen[member] += 1
                if (c.sequence, member) in hidden:
                    continue
                entries.append(c.entry(member, now))
                if c.depart[member] > now:
                    again.append(c)
            still_open[member] = again
            joiner.take(member, entries)
        joiner.settle(now)


def _tick_times(rng, collectives, count):
    first, last = min(collectives[0].arrive), max(collectives[-1].depart)
    return [*sorted(rng.randrange(first, last) for _ in range(count)), last, last, last]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_collective_is_counted_as_defined(seed, size):
    rng = random.Random(seed)
    collectives = run(seed, size, 200)
    joiner = _joiner(size)
    _read_all(joiner, collectives, size, _tick_times(rng, collectives, 25), rng)
    group = joiner.group(SECOND * 3)
    assert _sums(group) == _expected(collectives, size)
    assert (group.unjoined, group.open) == (0, ())
    assert sum(s.count for s in group.seconds) == 200


@pytest.mark.parametrize("seed", SEEDS)
def test_what_lacks_an_entry_is_unjoined_and_never_a_wait(seed):
    size, rng = 4, random.Random(seed)
    collectives = run(seed, size, 300)
    # Not the very last ones: a rank that is not beyond a collective may still come to it.
    hidden = {(rng.randrange(2, 295), rng.randrange(size)) for _ in range(30)}
    joiner = _joiner(size)
    _read_all(joiner, collectives, size, _tick_times(rng, collectives, 25), rng, hidden)
    lost = {sequence for sequence, _ in hidden}
    group = joiner.group(SECOND * 3)
    kept = [c for c in collectives if c.sequence not in lost]
    assert _sums(group) == _expected(kept, size)
    fully_lost = {s for s in lost if all((s, m) in hidden for m in range(size))}
    assert group.unjoined == len(lost - fully_lost)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_reader_begins_where_all_rings_still_reach(seed):
    size, rng = 4, random.Random(seed)
    collectives = run(seed, size, 200)
    first = [rng.randrange(1, 100) for _ in range(size)]
    hidden = {(s, m) for m in range(size) for s in range(1, first[m])}
    joiner = _joiner(size)
    _read_all(joiner, collectives, size, [collectives[-1].depart[0] + SECOND] * 3, rng, hidden)
    group = joiner.group(SECOND * 3)
    assert _sums(group) == _expected(collectives[max(first) - 1 :], size)
    assert group.unjoined == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_incarnations_never_mix(seed):
    size, rng = 3, random.Random(seed)
    before, after = run(seed, size, 90), run(seed + 1000, size, 80)
    joiner = _joiner(size, incarnation=1)
    cut = rng.randrange(10, 80)
    # One rank had already gone further than the others when the engine died.
    for member in range(size):
        joiner.take(member, [c.entry(member) for c in before[: cut + member]])
    joiner.settle(SECOND)
    joiner.follow(tuple((2, 0) for _ in range(size)))
    _read_all(joiner, after, size, _tick_times(rng, after, 10), rng)
    first, second = _expected(before[:cut], size), _expected(after, size)
    count, waits, charged, last = _sums(joiner.group(SECOND * 3))
    assert count == first[0] + second[0]
    for got, a, b in zip((waits, charged, last), first[1:], second[1:], strict=True):
        assert got == [x + y for x, y in zip(a, b, strict=True)]
    assert sum(s.count for s in joiner.group(SECOND * 3).seconds) == len(after)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_that_count_differently_give_no_wait(seed):
    """One rank's sequence is one ahead: on a shared clock that shows, and nothing is published."""
    size = 4
    collectives = run(seed, size, 100, late=1)
    joiner = _joiner(size)
    for member in range(size):
        shift = member == 2
        joiner.take(
            member, [c.entry(member)._replace(sequence=c.sequence + shift) for c in collectives]
        )
    joiner.settle(SECOND)
    group = joiner.group(SECOND)
    assert sum(t.count for t in group.totals) == 0
    assert group.unjoined >= 98
    assert group.unseen_reason == reasons.UNJOINED


def test_a_page_that_was_not_read_for_a_while_is_not_counted_twice():
    size = 2
    collectives = run(1, size, 50)
    joiner = _joiner(size)
    for _ in range(2):  # the second time the page was opened anew and its ring read from the start
        for member in range(size):
            joiner.take(member, [c.entry(member) for c in collectives])
        joiner.settle(SECOND)
        joiner.follow((None, (1, 0)))
        joiner.settle(SECOND)
        assert joiner.group(SECOND).unseen_reason == reasons.MISSING_RANK
        joiner.follow(((1, 0), (1, 0)))
    assert _sums(joiner.group(SECOND)) == _expected(collectives, size)
    assert joiner.group(SECOND).unjoined == 0


def test_a_different_operation_at_the_same_sequence_is_unjoined():
    joiner = _joiner(2)
    c = Collective(1, "all_gather", (100, 200), (300, 300))
    joiner.take(0, [c.entry(0)])
    joiner.take(1, [c.entry(1)._replace(op=layout.OP_INDEX["barrier"])])
    joiner.settle(SECOND)
    group = joiner.group(SECOND)
    assert (group.totals, group.unjoined) == ((), 1)
    [mismatch] = group.mismatches
    assert (mismatch.sequence, set(mismatch.ops)) == (1, {"all_gather", "barrier"})


def test_a_mismatch_needs_no_times_and_ends_with_the_ranks_that_made_it():
    joiner = _joiner(2)
    none = layout.BASIS_INDEX["none"]
    c = Collective(1, "all_gather", (100, 200), (300, 300))
    joiner.take(0, [c.entry(0)._replace(basis=none)])
    joiner.take(1, [c.entry(1)._replace(op=layout.OP_INDEX["barrier"], basis=none)])
    joiner.settle(SECOND)
    assert len(joiner.group(SECOND).mismatches) == 1
    joiner.follow(tuple((member, 0) for member in (901, 902)))
    assert joiner.group(SECOND).mismatches == ()


def test_asynchronous_entries_are_never_a_wait():
    joiner = _joiner(2)
    c = Collective(1, "all_gather", (100, 900), (901, 902))
    joiner.take(0, [c.entry(0, basis="none")])
    joiner.take(1, [c.entry(1, basis="none")])
    joiner.settle(SECOND)
    group = joiner.group(SECOND)
    assert (group.totals, group.unjoined) == ((), 0)
    assert group.unseen_reason == reasons.ASYNC_ONLY


def test_device_times_need_no_shared_clock():
    """Rank 1's host ran ahead; its device was the last to come."""
    entries = [
        Entry(1, layout.OP_INDEX["all_reduce"], layout.BASIS_INDEX["cuda_event"], *times)
        for times in ((5_000, 9_000, 700), (10, 20_000, 50))
    ]
    joiner = _joiner(2)
    for member, entry in enumerate(entries):
        joiner.take(member, [entry])
    joiner.settle(SECOND)
    [total] = joiner.group(SECOND).totals
    assert total.basis == "cuda_event"
    assert total.wait_seconds == pytest.approx((650e-9, 0))
    assert total.last_count == (0, 1)


def test_a_tie_is_charged_to_the_latest_to_arrive():
    joiner = _joiner(3)
    c = Collective(1, "barrier", (100, 300, 200), (400, 600, 500))
    for member in range(3):
        joiner.take(member, [c.entry(member)])
    joiner.settle(SECOND)
    [total] = joiner.group(SECOND).totals
    assert total.last_count == (0, 1, 0)
    assert total.wait_seconds == (0, 0, 0)


def test_a_rooted_operation_waits_from_arrivals_and_stays_out_of_the_seconds():
    joiner = _joiner(3)
    c = Collective(1, "broadcast", (100, 400, 250), (110, 410, 500))
    for member in range(3):
        joiner.take(member, [c.entry(member)])
    joiner.settle(SECOND)
    group = joiner.group(SECOND)
    [total] = group.totals
    assert total.op == "broadcast"
    assert total.wait_seconds == pytest.approx((300e-9, 0, 150e-9))
    assert total.charged_seconds == pytest.approx((0, 450e-9, 0))
    assert sum(s.count for s in group.seconds) == 0


def test_an_open_collective_names_who_is_missing():
    joiner = _joiner(4)
    done = Collective(1, "all_gather", (100, 100, 100, 100), (200, 200, 200, 200))
    now = 10 * SECOND
    stuck = Collective(2, "all_gather", (now - 4 * SECOND,) * 4, (2 * now,) * 4)
    for member in range(4):
        joiner.take(member, [done.entry(member)])
        if member != 2:
            joiner.take(member, [stuck.entry(member, now)])
    joiner.settle(now)
    [opened] = joiner.group(now).open
    assert (opened.op, opened.sequence) == ("all_gather", 2)
    assert opened.open_seconds == pytest.approx(4.0)
    assert (opened.present_ranks, opened.missing_ranks) == ((0, 1, 3), (2,))


def test_all_in_and_none_out_shows_once_it_is_long():
    joiner = _joiner(2)
    c = Collective(1, "all_gather", (SECOND, SECOND), (99 * SECOND, 99 * SECOND))
    for member in range(2):
        joiner.take(member, [c.entry(member, 2 * SECOND)])
    joiner.settle(2 * SECOND)
    assert joiner.group(SECOND + MILLISECOND).open == ()
    [opened] = joiner.group(4 * SECOND).open
    assert opened.missing_ranks == ()


def test_a_lost_entry_is_not_a_missing_rank():
    joiner = _joiner(2)
    c = [Collective(s, "all_gather", (s * 100,) * 2, (s * 100 + 50,) * 2) for s in (1, 2, 3)]
    joiner.take(0, [c[0].entry(0), c[1].entry(0, 0), c[2].entry(0)])
    joiner.take(1, [c[0].entry(1), c[2].entry(1)])
    joiner.settle(SECOND)
    assert joiner.group(9 * SECOND).open == ()


def test_a_rank_without_a_page_that_takes_part_is_not_missing():
    """The others leave collectives that could not end without it."""
    joiner = GroupJoiner("g", (0, 1, 2))
    joiner.follow(((1, 0), (1, 0), None))
    c = [Collective(s, "all_gather", (s * 100,) * 3, (s * 100 + 50,) * 3) for s in (1, 2)]
    for member in (0, 1):
        joiner.take(member, [c[0].entry(member), c[1].entry(member, 0)])
    joiner.settle(SECOND)
    group = joiner.group(9 * SECOND)
    assert all(2 not in o.missing_ranks for o in group.open)
    assert group.unseen_reason == reasons.MISSING_RANK


def test_memory_is_bounded_while_a_rank_stays_away():
    joiner = _joiner(2)
    for begin in range(0, 4 * MOST_WAITING, 1000):
        joiner.take(
            0,
            [
                Collective(s, "barrier", (s, s), (s + 1, s + 1)).entry(0)
                for s in range(begin + 1, begin + 1001)
            ],
        )
        joiner.settle(SECOND)
        assert len(joiner._waiting) <= MOST_WAITING
    for second in range(0, 500 * SECOND, SECOND):
        c = Collective(second // SECOND + 10**6, "barrier", (second,) * 2, (second + 5,) * 2)
        for member in range(2):
            joiner.take(member, [c.entry(member)])
        joiner.settle(second)
    assert len(joiner._seconds) <= 121
    assert len(joiner.group(500 * SECOND).seconds) <= 121


def test_seconds_are_dense_over_what_was_observed():
    """A quiet engine was observed too: the wall is the span, not the busy seconds."""
    joiner = _joiner(2)
    for second in (5, 9):
        c = Collective(second, "barrier", (second * SECOND,) * 2, (second * SECOND + 5,) * 2)
        for member in range(2):
            joiner.take(member, [c.entry(member)])
    joiner.settle(12 * SECOND)
    seconds = joiner.group(12 * SECOND).seconds
    assert [s.second for s in seconds] == list(range(5, 13))
    assert [s.count for s in seconds] == [1, 0, 0, 0, 1, 0, 0, 0]
