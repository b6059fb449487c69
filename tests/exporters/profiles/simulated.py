"""Simulates a lockstep engine's ranks from a seed: who came when, which is the truth of the waits.

Times in ns. A rank computes, stores at times (a copy to the host under a range), and enters the
collectives of one or two communicators, in one order on every rank.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SYMMETRIC = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
US = 1000


@dataclass
class Row:
    kind: str  # kernel, copy, collective, range, call
    name: str
    start: int
    end: int
    op: str = ""
    group: int = 0
    sequence: int = 0
    bytes: int = 0


@dataclass
class Run:
    """`rows[r]` of each rank; `late` is the rank that was made late (None: none was);
    `wait_ns[r]` what each waited in symmetric collectives; `groups` the ranks of each."""

    seed: int
    size: int
    late: int | None
    rows: list[list[Row]]
    groups: list[tuple[int, ...]]
    wait_ns: list[int]
    has_rooted: bool
    copy_bytes: int
    draw: random.Random = field(repr=False, default_factory=random.Random)


def simulate(seed: int, size: int | None = None, steps: int = 48) -> Run:
    """A run of 2 to 8 ranks; in three of four one rank is late, always or every few steps."""
    draw = random.Random(seed)
    size = size or draw.choice((2, 3, 4, 8))
    late = draw.randrange(size) if draw.random() < 0.75 else None
    every = draw.choice((1, 1, 2, 3))
    delay = draw.randint(300, 3000) * US
    with_copy = draw.random() < 0.6
    jitter = draw.randint(2, 40) * US
    rooted_share = draw.choice((0.0, 0.0, 0.2))
    halves = size >= 4 and size % 2 == 0 and draw.random() < 0.3
    groups = [tuple(range(size))]
    if halves:
        groups += [tuple(range(size // 2)), tuple(range(size // 2, size))]
    rows: list[list[Row]] = [[] for _ in range(size)]
    clock = [10_000_000 + draw.randint(0, 50) * US for _ in range(size)]
    wait = [0] * size
    sequence = [0] * len(groups)
    copied = 0
    for step in range(steps):
        for rank in range(size):
            begin = clock[rank]
            for _ in range(draw.randint(1, 4)):
                end = clock[rank] + draw.randint(20, 120) * US
                rows[rank].append(Row("kernel", f"gemm_{draw.randint(0, 3)}", clock[rank], end))
                clock[rank] = end + draw.randint(1, 6) * US
            clock[rank] += int(abs(draw.gauss(0, jitter)))
            # Nobody computes equally long: what is left of the step's difference is noise.
            clock[rank] = max(clock[rank], begin + 400 * US + draw.randint(0, jitter))
            if rank == late and step % every == 0:
                end = clock[rank] + delay
                rows[rank].append(Row("range", "LMCacheEngine.store", clock[rank], end))
                if with_copy:
                    moved = delay * 20  # 20 GB/s
                    rows[rank].append(
                        Row("copy", "DtoH", clock[rank] + 2 * US, end - 2 * US, bytes=moved)
                    )
                    copied += moved
                clock[rank] = end
        chosen = [0] if len(groups) == 1 or draw.random() < 0.7 else [1, 2]
        rooted = chosen == [0] and draw.random() < rooted_share
        op = "broadcast" if rooted else draw.choice(SYMMETRIC)
        root = draw.randrange(size)
        for group in chosen:
            _enter(draw, rows, clock, wait, groups[group], group, sequence[group], op, root)
            sequence[group] += 1
    return Run(seed, size, late, rows, groups, wait, rooted_share > 0, copied, draw)


def _enter(draw, rows, clock, wait, ranks, group, sequence, op, root):
    transfer = draw.randint(30, 200) * US
    arrive = {rank: clock[rank] for rank in ranks}
    last = max(arrive.values())
    size = draw.randint(1, 64) << 20
    for rank in ranks:
        if op == "broadcast":
            from_root = max(arrive[rank], arrive[root])
            end = from_root + transfer + draw.randint(0, 2) * US
        else:
            end = last + transfer + draw.randint(0, 2) * US
            wait[rank] += last - arrive[rank]
        rows[rank].append(Row("collective", op, arrive[rank], end, op, group, sequence, bytes=size))
        clock[rank] = end + draw.randint(1, 5) * US
