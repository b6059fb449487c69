"""Reads many files, one process each up to the number of cores, into one Recording."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from exporters import reasons
from exporters.readers.profiles import flight_recorder, inspector, kineto, nsys
from exporters.readers.profiles import table as t
from exporters.readers.profiles.errors import ProfileError
from exporters.readers.profiles.recognise import format_of, rank_in_name
from exporters.snapshot import Unseen

# Below this a second process costs more to start than it saves.
_WORTH_A_PROCESS_BYTES: Final = 2 << 20

READERS: Final[Mapping[str, Callable[[Path], t.Part]]] = {
    nsys.FORMAT: nsys.read,
    kineto.FORMAT: kineto.read,
    inspector.FORMAT: inspector.read,
    flight_recorder.FORMAT: flight_recorder.read,
}


@dataclass(frozen=True, slots=True)
class FileRead:
    """What was made of one file."""

    path: str
    format: str
    schema: str
    events: int
    left_out: Mapping[str, int]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """All files as one table. `world_size` 0 where no file states it; `shares_clock` where the
    times of different ranks can be compared at all (one host or one export)."""

    table: t.Table
    names: tuple[str, ...]
    groups: tuple[t.GroupName, ...]
    ranks: tuple[int, ...]
    world_size: int
    shares_clock: bool
    duration_only: bool
    device: t.Device
    files: tuple[FileRead, ...]
    unseen: tuple[Unseen, ...]


def read_profile(path: Path) -> t.Part:
    """One file, whatever its format. Raises ProfileError."""
    return READERS[format_of(path)](path)


def load(paths: Sequence[Path], ranks: Sequence[int] = ()) -> Recording:
    """Every file in `paths` (with `ranks`, one for each, where given). A file that cannot be read
    is told as unseen; where two claim one rank, ProfileError says what to give."""
    parts: list[t.Part] = []
    unseen: list[Unseen] = []
    given = dict(zip(map(str, paths), ranks, strict=False))
    for outcome in _read_all(paths):
        if isinstance(outcome, ProfileError):
            mend = outcome.mend
            unseen.append(
                Unseen(outcome.path, outcome.reason, f"{outcome.path}: {outcome.what}", mend)
            )
        else:
            parts.append(outcome)
    ranked = _with_ranks(parts, given, unseen)
    return _merge(ranked, unseen)


def _read_one(path: Path) -> t.Part | ProfileError:
    try:
        return read_profile(path)
    except ProfileError as error:
        return error
    except OverflowError:
        return ProfileError(str(path), reasons.DAMAGED, "holds a number that no profiler writes")
    except MemoryError:
        return ProfileError(str(path), reasons.UNREADABLE, "does not fit in memory")


def _read_all(paths: Sequence[Path]) -> list[t.Part | ProfileError]:
    """In this process and others, as many as there are cores; the largest files first."""
    workers = min(len(paths), os.cpu_count() or 1) - 1
    if workers < 1 or sum(_size(p) for p in paths) < _WORTH_A_PROCESS_BYTES:
        return [_read_one(path) for path in paths]
    context = multiprocessing.get_context("fork" if _is_alone() else "spawn")
    order = sorted(range(len(paths)), key=lambda i: -_size(paths[i]))
    done: dict[int, t.Part | ProfileError] = {}
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            later = {i: pool.submit(_read_one, paths[i]) for i in order[1:]}
            # This process reads too, from the start: others take as long to begin as a small file.
            done[order[0]] = _read_one(paths[order[0]])
            for i in reversed(order[1:]):
                if later[i].cancel():
                    done[i] = _read_one(paths[i])
            for i, future in later.items():
                if i not in done:
                    done[i] = future.result()
    except BrokenProcessPool:  # killed for memory, most likely: one at a time needs less
        done.update({i: _read_one(paths[i]) for i in order if i not in done})
    return [done[i] for i in range(len(paths))]


def _is_alone() -> bool:
    """Whether this process has one thread: then a fork inherits no lock that nobody will release,
    and saves a worker the third of a second in which it would import everything anew."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _guessed(path: str, rank: int) -> Unseen:
    return Unseen(
        path,
        reasons.MISSING_RANK,
        f"{path} does not say its rank, nor does its name: taken as {rank} by its place",
        "say which is which: --rank N once for each FILE",
    )


def _with_ranks(
    parts: Sequence[t.Part], given: Mapping[str, int], unseen: list[Unseen]
) -> list[t.Part]:
    """Every part with ranks in its rows: given, stated in the file, in its name, or its order."""
    out = []
    owner: dict[int, str] = {}
    for index, part in enumerate(parts):
        own = sorted({int(r) for r in np.unique(part.table.rank) if r >= 0})
        if part.path in given and len(own) < 2:
            rank = given[part.path]
        elif len(own) > 1 or (own and part.rank is None and len(parts) == 1):
            rank = None
        else:
            named = rank_in_name(Path(part.path))
            rank = part.rank if part.rank is not None else named
            if rank is None:
                rank = own[0] if own else index
                if len(parts) > 1 and not own:
                    unseen.append(_guessed(part.path, rank))
        if rank is not None:
            if own:  # rows of no rank belong to no process that the file tells of
                mine = part.table.rank >= 0
                part.table.rank[mine] = rank
            else:
                part.table.rank[:] = rank
            own = [rank]
        for number in own:
            if number in owner:
                raise ProfileError(
                    part.path,
                    reasons.DUPLICATE,
                    f"claims rank {number}, as {owner[number]} does",
                    "say which is which: --rank N once for each FILE",
                )
            owner[number] = part.path
        out.append(replace(part, rank=rank))
    return out


def _merge(parts: Sequence[t.Part], unseen: list[Unseen]) -> Recording:
    names: dict[str, int] = {}
    groups: dict[t.GroupName, int] = {}
    files = []
    tables = []
    for part in parts:
        table = part.table
        if len(table):
            ids = np.array([names.setdefault(n, len(names)) for n in part.names] or [0])
            known = table.name >= 0
            table.name[known] = ids[table.name[known]]
            if part.groups:
                group_ids = np.array([groups.setdefault(g, len(groups)) for g in part.groups])
                known = table.group >= 0
                table.group[known] = group_ids[table.group[known]]
        tables.append(table)
        own = tuple(int(r) for r in np.unique(table.rank) if r >= 0)
        files.append(FileRead(part.path, part.format, part.schema, part.events, part.left_out, own))
        unseen += [*part.unseen, *_damage(part)]
    clocks = {part.clock for part in parts}
    return Recording(
        table=t.joined(tables),
        names=tuple(names),
        groups=tuple(groups),
        ranks=tuple(sorted({r for file in files for r in file.ranks})),
        world_size=_world_size(parts, unseen),
        # A trace that names no host may be of this one: the ends of its collectives will tell.
        shares_clock=len(clocks) == 1 and not any(p.duration_only for p in parts),
        duration_only=any(p.duration_only for p in parts),
        device=next((p.device for p in parts if p.device.multiprocessors), t.Device()),
        files=tuple(files),
        unseen=tuple(unseen),
    )


def _damage(part: t.Part) -> list[Unseen]:
    if not part.left_out:
        return []
    text = ", ".join(f"{count} {what}" for what, count in sorted(part.left_out.items()))
    return [
        Unseen(
            part.path,
            reasons.DAMAGED,
            f"{part.path}: left out {text} of {part.events} events",
            "what rests on them is missing here; record again if it matters",
        )
    ]


def _world_size(parts: Sequence[t.Part], unseen: list[Unseen]) -> int:
    stated = Counter(part.world_size for part in parts if part.world_size)
    if len(stated) > 1:
        sizes = " and ".join(map(str, sorted(stated)))
        unseen.append(
            Unseen(
                "world size",
                reasons.UNJOINED,
                f"the files state different world sizes: {sizes}",
                "give files of one run",
            )
        )
    return max(stated, default=0)
