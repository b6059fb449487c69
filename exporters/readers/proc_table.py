"""Read the process table: names, parents, states, and which processes are an engine's.

Reads /proc only: no signal is sent, nothing is attached to. `proc` is another folder in tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
MOST_ENGINE_PROCESSES: Final = 256  # more than any host has GPUs, and an end to what is started
# Set by vLLM where setproctitle is installed; the prefix is the user's to choose.
_TITLE: Final = re.compile(r"^[\w.-]{1,64}::(?P<name>(?:EngineCore|Worker)[\w-]{0,64})")
# Dimensions that number the workers of one engine by themselves where they stand alone.
_RANK: Final = re.compile(r"_(?:PP|PCP|TP)(\d+)")
# The processes whose children are the engine's where nothing sets a title.
_SERVERS: Final = (
    re.compile(r"\bvllm\b.{0,200}?\bserve\b"),
    re.compile(r"\bvllm\.entrypoints\b"),
    re.compile(r"(?:^| )-m lab\.host\b"),
)
_NOT_OURS: Final = re.compile(r"resource_tracker|forkserver|api_server|APIServer|DPCoordinator")
_PYTHON: Final = re.compile(r"(?:^|/)python[\d.]*$")


@dataclass(frozen=True, slots=True)
class Found:
    """One engine process by its name: what it is called, its rank where the name tells, and the
    process that it and its peers are children of (for a scheduler, itself)."""

    pid: int
    label: str
    rank: int | None
    family: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One process: `state` is the kernel's letter, `command` its arguments joined by spaces."""

    pid: int
    parent: int
    state: str
    command: str


def read_entry(pid: int, proc: Path = PROC) -> Entry | None:
    """A process as the table has it now; None where it is not there (any more)."""
    folder = proc / str(pid)
    try:
        stat = (folder / "stat").read_bytes()
        command = (folder / "cmdline").read_bytes()
    except OSError:
        return None
    rest = stat.rpartition(b")")[2].split()  # the name before may hold spaces and brackets
    if len(rest) < 2:
        return None
    text = command.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return Entry(pid, int(rest[1]), rest[0].decode("ascii", "replace"), text)


def entries(proc: Path = PROC) -> dict[int, Entry]:
    """Every process that can be seen from here, kernel threads (no arguments) left out."""
    try:
        names = os.listdir(proc)
    except OSError:
        return {}
    found = (read_entry(int(name), proc) for name in names if name.isdigit())
    return {entry.pid: entry for entry in found if entry is not None and entry.command}


def engine_processes(proc: Path = PROC) -> tuple[Found, ...]:
    """The scheduler and worker processes of vLLM or the lab that run here, by pid.

    By their titles; where nothing sets those, the Python children of a server.
    """
    table = entries(proc)
    found = {}
    for entry in table.values():
        if titled := _TITLE.match(entry.command):
            name = titled["name"]
            family = entry.parent if name.startswith("Worker") else entry.pid
            found[entry.pid] = Found(entry.pid, name, _rank_of(name), family)
    servers = [e for e in table.values() if any(p.search(e.command) for p in _SERVERS)]
    for server in servers:
        if server.pid in found or not _is_python(server):
            continue
        below = _below(server.pid, table)
        if any(pid in found for pid in below):
            continue  # this one's are titled
        for pid in below:
            entry = table[pid]
            if _is_python(entry) and not _NOT_OURS.search(entry.command):
                found[pid] = Found(pid, f"child of {server.pid}", None, server.pid)
    for pid in _ancestors(os.getpid(), table):
        found.pop(pid, None)
    return tuple(found[pid] for pid in sorted(found))[:MOST_ENGINE_PROCESSES]


def seen_as(pid: int, inode: int, proc: Path = PROC) -> int | None:
    """The pid by which we see the process that calls itself `pid` and has a file of that inode
    mapped; None where no such process is in sight.

    In another PID namespace the same number is another process: NSpid lists a process's own.
    """
    candidates = []
    for other in (pid, *(number for number in _numbers(proc) if number != pid)):
        folder = proc / str(other)
        if not _calls_itself(folder, pid):
            continue
        mapped = _maps(folder, inode)
        if mapped:
            return other
        if mapped is None:
            candidates.append(other)
    # Those that we may not look into: what keeps us says so, if there is no doubt which one it is.
    return candidates[0] if len(candidates) == 1 else None


def _numbers(proc: Path) -> Iterable[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return ()


def _calls_itself(folder: Path, pid: int) -> bool:
    try:
        status = (folder / "status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return line.split()[-1] == str(pid)
    return folder.name == str(pid)  # a kernel without PID namespaces


def _maps(folder: Path, inode: int) -> bool | None:
    """Whether a file of that inode is mapped; None where we may not look."""
    try:
        with (folder / "maps").open(errors="replace") as lines:
            return any(line.split(maxsplit=5)[4:5] == [str(inode)] for line in lines)
    except ProcessLookupError:
        return False
    except OSError as error:
        return False if isinstance(error, FileNotFoundError) else None


def _rank_of(name: str) -> int | None:
    numbers = _RANK.findall(name)
    return int(numbers[0]) if len(numbers) == 1 and "_DP" not in name else None


def _is_python(entry: Entry) -> bool:
    words = entry.command.split(" ", 1)
    return bool(_PYTHON.search(words[0])) or "/vllm" in words[0]


def _below(pid: int, table: dict[int, Entry]) -> set[int]:
    """Its children and theirs. The table is of no one moment: a number may be in use twice, and
    parents go round in a circle."""
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {e.pid for e in table.values() if e.parent in fresh} - found - {pid}
        found |= fresh
    return found


def _ancestors(pid: int, table: dict[int, Entry]) -> set[int]:
    """Itself, its parent and so on."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
