"""How stacks read: which ranks, which thread, the calls from the innermost out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from exporters.readers.stacks import StackSample
from exporters.snapshot import ProcessStack, Unseen
from runbooks.cli.terminal import Style
from runbooks.stack_groups import StackGroup

SCHEMA: Final = 1
_NAME_COLUMNS: Final = 36
_SHOWN_FRAMES: Final = 20
_FEWEST_COUNTED: Final = 3
_STOPPED: Final = ("T", "t")


def stacks_json(sample: StackSample, groups: tuple[StackGroup, ...]) -> dict[str, object]:
    """The documented schema: every process with all its threads, and the groups by pid."""
    return {
        "schema": SCHEMA,
        "took_seconds": round(sample.took_seconds, 4),
        "processes": [asdict(process) for process in sample.stacks],
        "groups": [
            {
                "thread": group.thread,
                "odd": group.odd,
                "pids": [process.pid for process in group.processes],
                "ranks": [p.rank for p in group.processes if p.rank is not None],
                "threads": group.threads,
                "active": group.active,
                "frames": [asdict(frame) for frame in group.frames],
            }
            for group in groups
        ],
        "unseen": [asdict(unseen) for unseen in sample.unseen],
    }


def stacks_text(
    sample: StackSample, groups: tuple[StackGroup, ...], style: Style, everything: bool
) -> str:
    """The groups, the odd ones first; what could not be read last. Without `everything` the middle
    of a long stack is left out, and that is said."""
    several = len({process.engine_id for process in sample.stacks}) > 1
    blocks = ["\n".join(_group(group, style, several, everything)) for group in groups]
    rest = [_notes(process, style) for process in sample.stacks if _note(process)]
    rest += [_unseen(unseen, style) for unseen in sample.unseen]
    if sample.stacks:
        threads = sum(len(process.threads) for process in sample.stacks)
        rest.append(
            f"{style.paint('dim', 'seen')}     {_count(len(sample.stacks), 'process')}, "
            f"{_count(threads, 'thread')} in {_count(len(groups), 'different stack')}, "
            f"{sample.took_seconds:.2f} s"
        )
    return "\n\n".join([*blocks, "\n".join(rest)])


def _group(group: StackGroup, style: Style, several: bool, everything: bool) -> list[str]:
    mark = style.paint("red", "ODD") + "  " if group.odd else ""
    where = _whose(group.processes, several)
    doing = []
    if group.threads > len(group.processes):
        doing.append(f"{group.threads} threads")
    doing.append(
        "running"
        if group.active == group.threads
        else f"{group.active} running"
        if group.active
        else "waiting"
    )
    lines = [f"{mark}{style.paint('bold', group.thread)}  {where}  ({', '.join(doing)})"]
    if not group.frames:
        return [*lines, "  no Python call"]
    frames = list(group.frames)
    left_out = group.cut_frames
    at = len(frames) // 2
    if not everything and len(frames) > _SHOWN_FRAMES:
        at = _SHOWN_FRAMES // 2
        left_out += len(frames) - _SHOWN_FRAMES
        frames = frames[:at] + frames[-(_SHOWN_FRAMES - at) :]
    rows = [f"  {frame.function:<{_NAME_COLUMNS}} {frame.file}:{frame.line}" for frame in frames]
    if left_out:
        rows.insert(at, style.paint("dim", f"  ... {left_out} calls left out"))
    return [*lines, *rows]


def _whose(processes: tuple[ProcessStack, ...], several: bool) -> str:
    """ "ranks 0-3, 5" for workers, labels for the others; by engine where there are several."""
    parts = []
    by_engine: dict[str, list[ProcessStack]] = {}
    for process in processes:
        by_engine.setdefault(process.engine_id, []).append(process)
    for engine, members in by_engine.items():
        ranks = sorted({p.rank for p in members if p.rank is not None})
        others = _named([p for p in members if p.rank is None])
        if len(members) == 1:
            named = members[0].label
        else:
            named = ", ".join([*([f"ranks {_runs(ranks)}"] if ranks else []), *others])
        parts.append(f"{named} of {engine}" if several and engine else named)
    return "; ".join(parts)


def _named(processes: list[ProcessStack]) -> list[str]:
    if len(processes) < _FEWEST_COUNTED:
        return [process.label for process in processes]
    pids = _runs(sorted(process.pid for process in processes))
    return [f"{len(processes)} processes (pids {pids})"]


def _runs(numbers: list[int]) -> str:
    """0, 1, 2, 5 as 0-2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _note(process: ProcessStack) -> str:
    if process.state in _STOPPED:
        return f"{process.label} is stopped (kernel state {process.state})"
    if process.state == "D":
        return f"{process.label} waits inside the kernel (state D)"
    return ""


def _notes(process: ProcessStack, style: Style) -> str:
    return f"{style.paint('yellow', 'note')}     {_note(process)}"


def _unseen(unseen: Unseen, style: Style) -> str:
    mend = f"; {unseen.mend}" if unseen.mend else ""
    return f"{style.paint('yellow', 'unseen')}   {unseen.detail}{mend}"


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
