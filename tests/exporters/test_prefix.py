"""Which rank's shard cut the prefix: the ranks' answers to one lookup, joined over ticks."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from exporters import prefix
from exporters.prefix import PrefixJoiner
from exporters.snapshot import Operation
from tests.detectors.pictures import worker

CHUNK = 256
SIZE = 4
numbers = itertools.count(1)


class Ranks:
    """Workers whose lookups are added one at a time, and read as a reader reads them."""

    def __init__(self, size=SIZE, info=None):
        facts = {"chunk_tokens": CHUNK} if info is None else info
        self.of = {r: worker(r, size, info=facts) for r in range(size)}
        self.joiner = PrefixJoiner()

    def answer(self, rank, number, chunks, kind="lookup"):
        done = Operation(kind, 1.0, 2.0, chunks * CHUNK, 0, number, 0)
        process = self.of[rank]
        self.of[rank] = dataclasses.replace(process, operations=(*process.operations, done))

    def ask(self, *answers):
        number = next(numbers)
        for rank, chunks in enumerate(answers):
            self.answer(rank, number, chunks)

    def limits(self):
        found = self.joiner.update(self.of)
        return {p.rank: (p.limited_lookups, p.lost_chunks) for p in found}


def only(rank, count, lost, size=SIZE):
    return {r: (count, lost) if r == rank else (0, 0) for r in range(size)}


def test_a_shard_that_forgets_is_named_with_what_it_cost():
    ranks = Ranks()
    ranks.ask(40, 41, 2, 43)
    assert ranks.limits() == only(2, 1, 38)
    assert ranks.limits() == only(2, 1, 38), "a lookup is counted once"
    ranks.ask(40, 41, 2, 43)
    assert ranks.limits() == only(2, 2, 76)


@pytest.mark.parametrize("length", range(9))
def test_where_a_prefix_just_ends_nobody_is_to_blame(length):
    """The first absent chunk of each rank, when chunks 0 to length - 1 are there."""
    ranks = Ranks()
    ranks.ask(*(next(c for c in range(length, 99) if c % SIZE == r) for r in range(SIZE)))
    ranks.ask(12, 12, 12, 12)  # all of the prompt
    ranks.ask(0, 0, 0, 0)
    assert ranks.limits() == only(0, 0, 0)


def test_answers_come_in_different_ticks_and_orders():
    ranks = Ranks()
    for rank in (3, 0, 2):
        ranks.answer(rank, 77, 50)
        assert ranks.limits() == only(0, 0, 0) if len(ranks.limits()) == SIZE else True
    ranks.answer(1, 77, 10)
    assert ranks.limits() == only(1, 1, 40)


def test_a_question_asked_again_is_answered_anew():
    ranks = Ranks(2)
    ranks.answer(0, 7, 0)  # and rank 1 was restarted before it answered
    ranks.answer(0, 7, 40)
    ranks.answer(1, 7, 40)
    assert ranks.limits() == only(0, 0, 0, 2)


def test_what_is_no_lookup_of_several_ranks_is_left_out():
    ranks = Ranks()
    for rank in range(SIZE):
        ranks.answer(rank, 0, rank * 10)  # by a caller that names no request
        ranks.answer(rank, 5, rank * 10, kind="load")
    assert ranks.limits() == only(0, 0, 0)
    alone = Ranks(1)
    alone.ask(0)
    assert alone.limits() == only(0, 0, 0, 1)
    unknown = Ranks(info={})
    unknown.ask(40, 41, 2, 43)
    assert unknown.limits() == only(0, 0, 0)


def test_lookups_that_are_never_answered_are_forgotten(monkeypatch):
    monkeypatch.setattr(prefix, "MOST_OPEN", 10)
    ranks = Ranks()
    for number in range(1, 100):
        ranks.answer(0, number, 1)
    ranks.limits()
    assert len(ranks.joiner._open) <= 11


def test_a_worker_that_was_restarted_is_read_from_its_first_operation():
    ranks = Ranks(2)
    ranks.ask(40, 2)
    assert ranks.limits() == only(1, 1, 38, 2)
    for rank in range(2):
        ranks.of[rank] = dataclasses.replace(
            ranks.of[rank], incarnation=ranks.of[rank].incarnation + 1, operations=()
        )
    ranks.ask(30, 2)
    assert ranks.limits() == only(1, 2, 66, 2)
