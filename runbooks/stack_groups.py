"""Equal stacks of many ranks told once, and the rank whose stack is not as the others' marked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from exporters.snapshot import Frame, ProcessStack, ThreadStack

_DIGITS: Final = re.compile(r"\d+")
# Fewer ranks than this have no majority that one of them could differ from.
_FEWEST_RANKS: Final = 3


@dataclass(frozen=True, slots=True)
class StackGroup:
    """One stack, all threads that are in it, and whether it is the odd one out.

    `processes` are those that have it, `threads` how many threads of theirs together; `frames` are
    innermost first, their lines those of the first thread. `odd`: fewer than half of an engine's
    ranks have it, and the others are in this thread too.
    """

    thread: str
    frames: tuple[Frame, ...]
    cut_frames: int
    processes: tuple[ProcessStack, ...]
    threads: int
    active: int
    odd: bool


def collapse(stacks: Sequence[ProcessStack]) -> tuple[StackGroup, ...]:
    """Groups of equal stacks (same functions of the same files): odd ones first, then main threads,
    then by how many have them."""
    members: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[ProcessStack, ThreadStack]]]
    members = defaultdict(list)
    for process in stacks:
        for thread in process.threads:
            shape = tuple((frame.function, frame.file) for frame in thread.frames)
            members[_thread_name(thread), shape].append((process, thread))
    wide = _wide_engines(stacks)
    majorities = _majorities(members, wide)
    groups = [
        StackGroup(
            thread=name,
            frames=found[0][1].frames,
            cut_frames=found[0][1].cut_frames,
            processes=tuple({process.pid: process for process, _ in found}.values()),
            threads=len(found),
            active=sum(thread.active for _, thread in found),
            odd=_is_odd(name, (process for process, _ in found), wide, majorities),
        )
        for (name, _), found in members.items()
    ]
    return tuple(sorted(groups, key=_odd_first))


def _is_peer(process: ProcessStack) -> bool:
    """Whether its stack is held against others': a rank's, or one's of which no name tells that it
    is none."""
    is_rank = process.rank is not None or process.label.startswith(("Worker", "child of", "pid"))
    return is_rank and not process.torn


def _thread_name(thread: ThreadStack) -> str:
    """Pools number their threads: ThreadPoolExecutor-0_3 is one of many."""
    return _DIGITS.sub("#", thread.name) or "(no name)"


def _wide_engines(stacks: Iterable[ProcessStack]) -> dict[str, int]:
    """The engines with ranks enough for a majority, and how many of them were read whole."""
    ranks: dict[str, int] = defaultdict(int)
    for process in stacks:
        if _is_peer(process):
            ranks[process.engine_id] += 1
    return {engine: count for engine, count in ranks.items() if count >= _FEWEST_RANKS}


def _majorities(
    members: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[ProcessStack, ThreadStack]]],
    wide: dict[str, int],
) -> set[tuple[str, str]]:
    """(engine, thread) pairs of which more than half of the ranks are in one and the same stack."""
    found = set()
    for (name, _), listed in members.items():
        for engine, size in wide.items():
            ranks = {p.pid for p, _ in listed if p.engine_id == engine and _is_peer(p)}
            if len(ranks) * 2 > size:
                found.add((engine, name))
    return found


def _is_odd(
    name: str,
    processes: Iterable[ProcessStack],
    wide: dict[str, int],
    majorities: set[tuple[str, str]],
) -> bool:
    ranks: dict[str, set[int]] = defaultdict(set)
    for process in processes:
        if _is_peer(process):
            ranks[process.engine_id].add(process.pid)
    return any(
        (engine, name) in majorities and len(pids) * 2 < wide[engine]
        for engine, pids in ranks.items()
        if engine in wide
    )


def _odd_first(group: StackGroup) -> tuple[bool, bool, int, str]:
    return not group.odd, group.thread != "MainThread", -len(group.processes), group.thread
