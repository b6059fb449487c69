"""Rings on real page files, read at random moments: what was visible at all ranks is joined, the
rest is unjoined or unseen; against a brute-force reading of the same rings."""

from __future__ import annotations

import random

import pytest

from exporters.collectives import EngineJoiner
from exporters.readers.pages import PageFolder
from tests.exporters.lockstep import run, truth
from tests.exporters.page_files import SECOND, PageFile, worker_info

RING = 16
SIZE = 3


class _Run:
    """A lockstep run that is written to the pages as time goes on."""

    def __init__(self, folder, collectives, incarnation, torn=frozenset()):
        self.pages = [
            PageFile(
                folder / f"{incarnation}-{rank}.page",
                worker_info(rank, SIZE),
                incarnation=incarnation,
                start_ns=incarnation,
                ring_records=RING,
            )
            for rank in range(SIZE)
        ]
        self._collectives = collectives
        self._torn = torn
        self._written = [0] * SIZE
        self._state = [{} for _ in range(SIZE)]  # number -> depart as last written
        self.visible = [set() for _ in range(SIZE)]  # closed and whole in a ring at some reading

    def advance(self, now):
        for rank, page in enumerate(self.pages):
            state = self._state[rank]
            for c in self._collectives:
                number = c.sequence
                depart = c.depart[rank] if c.depart[rank] <= now else 0
                if c.arrive[rank] > now or state.get(number) == (depart or None):
                    continue
                state[number] = depart or None
                self._written[rank] = max(self._written[rank], number)
                if number > self._written[rank] - RING:
                    torn = (number, rank) in self._torn
                    page.record(
                        number, number, c.arrive[rank], depart, op=c.op, torn=torn, move_head=False
                    )
            page.head(self._written[rank])

    def note_visible(self):
        for rank in range(SIZE):
            oldest = self._written[rank] - RING
            self.visible[rank] |= {
                number
                for number, depart in self._state[rank].items()
                if depart and number > oldest and (number, rank) not in self._torn
            }


def _tick(folder, joiner, now):
    sample = folder.read(now)
    workers = {p.process.rank: p for p in sample.pages}
    return joiner.update(workers, now)


def _totals(groups):
    [group] = groups
    return (
        sum(t.count for t in group.totals),
        [round(sum(t.wait_seconds[i] for t in group.totals) * 1e9) for i in range(SIZE)],
        group.unjoined,
    )


@pytest.mark.parametrize("ticks", [60, 12, 4], ids=["no wrap", "some wraps", "mostly lost"])
@pytest.mark.parametrize("seed", range(4))
def test_exactly_what_was_visible_at_every_rank_is_joined(tmp_path, seed, ticks):
    rng = random.Random(seed)
    collectives = run(seed, SIZE, 120)
    torn = {(rng.randrange(2, 100), rng.randrange(SIZE)) for _ in range(5)}
    made = _Run(tmp_path, collectives, 1, torn)
    folder, joiner = PageFolder(tmp_path), EngineJoiner()
    first, last = collectives[0].arrive[0], max(collectives[-1].depart)
    step = (last - first) // ticks
    moments = [first + step * i + rng.randrange(step) for i in range(ticks)]
    for now in [*moments, last, last, last]:
        made.advance(now)
        made.note_visible()
        groups = _tick(folder, joiner, now)
    seen = set.intersection(*made.visible)
    joined = [c for c in collectives if c.sequence in seen]
    expected = truth(joined, SIZE)
    count, waits, unjoined = _totals(groups)
    assert (count, waits) == (expected.count, expected.wait_ns)
    touched = set.union(*made.visible)
    assert unjoined <= 120 - count
    assert unjoined >= len(touched - seen)
    folder.close()


def test_a_restart_of_the_engine_begins_anew(tmp_path):
    folder, joiner = PageFolder(tmp_path), EngineJoiner()
    first, second = run(1, SIZE, 12), run(2, SIZE, 14)
    for incarnation, collectives in ((1, first), (2, second)):
        made = _Run(tmp_path, collectives, incarnation)
        made.advance(SECOND * 9)
        groups = _tick(folder, joiner, SECOND * 9)
    assert _totals(groups)[0] == 26
    assert sum(s.count for s in groups[0].seconds) == 14
    folder.close()


def test_a_group_that_was_made_again_uses_its_newest_ring(tmp_path):
    """destroy_process_group and a new group of the same name: the sequence starts at 1 again."""
    old, new = run(1, SIZE, 10), run(2, SIZE, 6)
    seats = [{"ring": ring, "name": "world", "ranks": list(range(SIZE))} for ring in (0, 1)]
    for rank in range(SIZE):
        page = PageFile(tmp_path / f"{rank}.page", worker_info(rank, SIZE, groups=seats))
        for ring, collectives in enumerate((old, new)):
            for c in collectives:
                page.record(
                    c.sequence, c.sequence, c.arrive[rank], c.depart[rank], op=c.op, ring=ring
                )
    folder = PageFolder(tmp_path)
    groups = _tick(folder, EngineJoiner(), SECOND * 9)
    assert _totals(groups) == (6, truth(new, SIZE).wait_ns, 0)
    folder.close()


def test_torch_ranks_are_shown_as_the_engines_ranks(tmp_path):
    """vLLM may name worker 4 as rank 0 of the pod: groups hold torch ranks, findings ours."""
    collectives = run(1, 2, 5)
    for rank in range(2):
        info = worker_info(
            rank, 2, torch_rank=rank + 4, groups=[{"ring": 0, "name": "g", "ranks": [4, 5]}]
        )
        page = PageFile(tmp_path / f"{rank}.page", info)
        for c in collectives:
            page.record(c.sequence, c.sequence, c.arrive[rank], c.depart[rank], op=c.op)
    folder = PageFolder(tmp_path)
    sample = folder.read(SECOND)
    workers = {int(str(p.process.info["torch_rank"])): p for p in sample.pages}
    [group] = EngineJoiner().update(workers, SECOND)
    assert group.ranks == (0, 1)
    assert sum(t.count for t in group.totals) == 5
    folder.close()
