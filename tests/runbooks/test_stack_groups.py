"""Equal stacks told once, and the odd rank marked only where there is a majority to differ from."""

from __future__ import annotations

import dataclasses

from exporters.snapshot import Frame, ProcessStack, ThreadStack
from runbooks.stack_groups import collapse

WAITS = ("wait", "result", "batch_exists_sync")
IDLE = ("recv",)


def thread(name="lookup", functions=IDLE, line=1, **changes) -> ThreadStack:
    frames = tuple(Frame(function, "a.py", line) for function in functions)
    return dataclasses.replace(ThreadStack(name, 1, frames), **changes)


def rank(number, *threads, **changes) -> ProcessStack:
    made = ProcessStack(100 + number, f"rank {number}", number, "e", f"{number}.page", "S", threads)
    return dataclasses.replace(made, **changes)


def odd(stacks):
    return [(g.thread, [p.rank for p in g.processes]) for g in collapse(stacks) if g.odd]


def test_equal_stacks_are_one_whatever_their_lines():
    [group] = collapse([rank(i, thread(line=i)) for i in range(8)])
    assert ([p.rank for p in group.processes], group.threads, group.odd) == (
        list(range(8)),
        8,
        False,
    )


def test_the_odd_rank_comes_first():
    stacks = [
        rank(i, thread("MainThread"), thread(functions=WAITS if i == 5 else IDLE)) for i in range(8)
    ]
    groups = collapse(stacks)
    assert (groups[0].thread, groups[0].odd, groups[0].processes[0].rank) == ("lookup", True, 5)
    assert groups[1].thread == "MainThread"
    assert odd(stacks) == [("lookup", [5])]


def test_all_ranks_in_it_is_odd_for_none():
    assert odd([rank(i, thread(functions=WAITS)) for i in range(8)]) == []


def test_half_and_half_or_two_ranks_have_no_majority():
    assert odd([rank(i, thread(functions=WAITS if i % 2 else IDLE)) for i in range(8)]) == []
    assert odd([rank(0, thread()), rank(1, thread(functions=WAITS))]) == []


def test_what_half_of_the_ranks_do_besides_is_odd_for_none():
    """A second thread of the same name, in a pool that is busy on some."""
    both = [rank(i, thread(), *([thread(functions=WAITS)] if i % 2 else [])) for i in range(8)]
    assert odd(both) == []
    assert odd(both[:-2]) == []
    assert odd([*both[:2], *both[2::2]]) == [("lookup", [1])]


def test_a_scheduler_is_no_odd_rank():
    scheduler = rank(9, thread(functions=("poll",)), rank=None, label="scheduler (pid 9)")
    assert odd([*(rank(i, thread()) for i in range(4)), scheduler]) == []


def test_a_torn_picture_is_no_evidence():
    stacks = [rank(i, thread()) for i in range(4)]
    assert odd([*stacks, rank(4, thread(functions=WAITS), torn=True)]) == []


def test_each_engine_is_held_against_itself():
    first = [rank(i, thread()) for i in range(4)]
    second = [rank(i + 10, thread(functions=WAITS), engine_id="f") for i in range(4)]
    assert odd(first + second) == []
    assert odd([*first, rank(10, thread(functions=WAITS), engine_id="f")]) == []


def test_the_numbers_of_a_pool_are_one_name():
    stacks = [rank(0, *(thread(f"pool-1_{i}") for i in range(32)))]
    [group] = collapse(stacks)
    assert (group.thread, group.threads, len(group.processes)) == ("pool-#_#", 32, 1)
