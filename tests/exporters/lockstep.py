"""A made-up lockstep run and the brute-force truth of who waited in it, for the joiner's tests."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from exporters import page_layout as layout
from exporters.readers.rings import Entry

MILLISECOND = 1_000_000


@dataclass(frozen=True)
class Collective:
    """One collective as it happened: ns by position; `open_at` says what a reader sees."""

    sequence: int
    op: str
    arrive: tuple[int, ...]
    depart: tuple[int, ...]

    def entry(self, member: int, now_ns: int | None = None, basis: str = "host") -> Entry:
        """The member's record, still open if it leaves after `now_ns`."""
        depart = self.depart[member]
        is_open = now_ns is not None and depart > now_ns
        return Entry(
            sequence=self.sequence,
            op=layout.OP_INDEX[self.op],
            basis=layout.BASIS_INDEX[basis],
            arrive_ns=self.arrive[member],
            depart_ns=0 if is_open else depart,
            duration_ns=0 if is_open else depart - self.arrive[member],
        )


@dataclass
class Truth:
    """Sums over chosen collectives, straight from the definition."""

    count: int = 0
    wait_ns: list[int] = field(default_factory=list)
    charged_ns: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


def run(seed: int, size: int, count: int, late: int | None = None) -> list[Collective]:
    """`count` collectives of `size` ranks in lockstep; each rank works a random time between."""
    rng = random.Random(seed)
    clock = [1_000_000_000] * size
    made = []
    for sequence in range(1, count + 1):
        arrive = [
            at + rng.randrange(1, MILLISECOND) + (3 * MILLISECOND if i == late else 0)
            for i, at in enumerate(clock)
        ]
        latest = max(arrive)
        clock = [latest + rng.randrange(0, MILLISECOND // 10) for _ in range(size)]
        op = rng.choice(sorted(layout.SYMMETRIC_OPS))
        made.append(Collective(sequence, op, tuple(arrive), tuple(clock)))
    return made


def truth(collectives: Iterable[Collective], size: int) -> Truth:
    """wait_r = d_r - min d, charged to the rank with min d."""
    found = Truth(0, [0] * size, [0] * size, [0] * size)
    for c in collectives:
        d = [c.depart[i] - c.arrive[i] for i in range(size)]
        last = max(range(size), key=lambda i: (-d[i], c.arrive[i]))
        found.count += 1
        found.last[last] += 1
        for i in range(size):
            found.wait_ns[i] += d[i] - min(d)
            found.charged_ns[last] += d[i] - min(d)
    return found
