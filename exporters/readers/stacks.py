"""Read what every thread of an engine's processes is inside of, from outside and read-only.

Finds the processes by their pages or by their names, asks what keeps us from looking, and has
py-spy look at all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporters import reasons
from exporters.readers.proc_table import Found, engine_processes, seen_as
from exporters.readers.ptrace_rights import DENIED_MEND, hindrance
from exporters.readers.py_spy import Dump, Failure, dump_all, find_py_spy
from exporters.snapshot import Process, ProcessStack, Unseen

DEADLINE_SECONDS: Final = 5.0
_NAMESPACE_MEND: Final = (
    "look from its own container, from one with shareProcessNamespace: true, or from a debug "
    "container with --target"
)
_NO_PROCESS_MEND: Final = (
    "run this in the engine's container, give --from PAGES_DIR, or name it with --pid PID"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A process to look at, and what is known of it. Without a page `engine_id` is "pid N", of the
    process whose children its peers are."""

    pid: int
    label: str
    rank: int | None = None
    engine_id: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class StackSample:
    """The stacks of all processes that could be read, and what is unseen of the others."""

    stacks: tuple[ProcessStack, ...]
    unseen: tuple[Unseen, ...]
    took_seconds: float = 0.0


def of_pages(
    processes: Iterable[Process], folder: Path
) -> tuple[tuple[Target, ...], tuple[Unseen, ...]]:
    """The running processes that write the pages of a folder, as they are seen from here."""
    targets, unseen = [], []
    for process in processes:
        if process.liveness == "dead":
            continue
        label = _label(process)
        try:
            inode = (folder / process.page).stat().st_ino
        except OSError:
            continue  # the page went away: so did its process
        pid = seen_as(process.pid, inode)
        if pid is None:
            detail = f"{label}: its process (pid {process.pid} by its page) is not in sight here"
            unseen.append(Unseen(label, reasons.NO_PROCESS, detail, _NAMESPACE_MEND))
            continue
        targets.append(Target(pid, label, process.rank, process.engine_id, process.page))
    return tuple(targets), tuple(unseen)


def of_names(known: Iterable[Target] = ()) -> tuple[Target, ...]:
    """The engine processes that run here by their names, beyond those already known."""
    pids = {target.pid for target in known}
    return tuple(_target(found) for found in engine_processes() if found.pid not in pids)


def of_pids(pids: Iterable[int]) -> tuple[Target, ...]:
    """Processes given by number, named where their titles tell."""
    named = {found.pid: _target(found) for found in engine_processes()}
    return tuple(named.get(pid, Target(pid, f"pid {pid}")) for pid in dict.fromkeys(pids))


def read(
    targets: Sequence[Target], deadline_seconds: float = DEADLINE_SECONDS, native: bool = False
) -> StackSample:
    """Look at all of them side by side. Raises nothing: what cannot be read is unseen."""
    began = time.monotonic()
    if not targets:
        detail = "no engine process is in sight here"
        return StackSample(
            (), (Unseen("stacks", reasons.NO_PROCESS, detail, _NO_PROCESS_MEND),), 0.0
        )
    py_spy = find_py_spy()
    if py_spy is None:
        mend = "pip install py-spy (stallscope requires it), or put it on the PATH"
        return StackSample(
            (), (Unseen("stacks", reasons.NO_TOOL, "py-spy is not installed here", mend),), 0.0
        )
    unseen = []
    free = []
    for target in targets:
        blocked = hindrance(target.pid)
        if blocked is None:
            free.append(target)
        else:
            detail = f"{target.label}: {blocked.detail}"
            unseen.append(Unseen(target.label, reasons.NO_PTRACE, detail, blocked.mend))
    stacks = []
    dumps = dump_all(py_spy, [target.pid for target in free], deadline_seconds, native)
    for target, dump in zip(free, dumps, strict=True):
        if dump.failure is not None:
            unseen.append(_failure(target, dump))
            continue
        if dump.torn:
            unseen.append(_torn(target, dump))
        stacks.append(_stack(target, dump))
    took = time.monotonic() - began
    return StackSample(tuple(sorted(stacks, key=_by_rank)), tuple(unseen), took)


_FAILURES: Final[dict[Failure, tuple[str, str]]] = {
    "ended": (reasons.ENDED, "see its log for why, and kubectl logs --previous"),
    "denied": (reasons.NO_PTRACE, DENIED_MEND),
    "not_python": (reasons.NOT_PYTHON, "none needed if it is a tool; its stack is of gdb or perf"),
    "timeout": (reasons.TIMEOUT, "give it longer with --timeout SECONDS"),
    "failed": (reasons.UNREADABLE, "try py-spy dump --pid on it for all that it says"),
}


def _failure(target: Target, dump: Dump) -> Unseen:
    assert dump.failure is not None
    reason, mend = _FAILURES[dump.failure]
    return Unseen(target.label, reason, f"{target.label}: {dump.detail}", mend)


def _torn(target: Target, dump: Dump) -> Unseen:
    return Unseen(
        target.label,
        reasons.TORN,
        f"{target.label}: it ran on while it was read, and its stack is shown as it was read last "
        f"({dump.detail})",
        "look again; a process that stands still is read whole",
    )


def _stack(target: Target, dump: Dump) -> ProcessStack:
    return ProcessStack(
        pid=target.pid,
        label=target.label,
        rank=target.rank,
        engine_id=target.engine_id,
        page=target.page,
        state=dump.state,
        threads=dump.threads,
        torn=dump.torn,
        read_seconds=dump.read_seconds,
        took_seconds=dump.took_seconds,
    )


def _label(process: Process) -> str:
    if process.rank is not None and "worker" in process.roles:
        return f"rank {process.rank} (pid {process.pid})"
    return f"{'/'.join(process.roles) or 'process'} (pid {process.pid})"


def _target(found: Found) -> Target:
    label = f"{found.label} (pid {found.pid})"
    return Target(found.pid, label, found.rank, f"pid {found.family}")


def _by_rank(stack: ProcessStack) -> tuple[str, bool, int, int]:
    return stack.engine_id, stack.rank is not None, stack.rank or 0, stack.pid
