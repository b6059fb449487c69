"""Say before anything is tried whether we may read another process's memory, and the mend.

ptrace(2), "Ptrace access mode checking": same user and no more capabilities than ours, or
CAP_SYS_PTRACE; and the Yama module may ask for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporters.readers.proc_table import PROC

_SYS_PTRACE: Final = 1 << 19
DEBUG_LINE: Final = (
    "kubectl debug -it $POD --image=$STALLSCOPE_IMAGE --target=$CONTAINER --profile=general "
    "-- stallscope stacks"
)
CAPABILITY_MEND: Final = (
    "give this container the capability SYS_PTRACE (securityContext.capabilities.add), or look "
    f"from a debug container: {DEBUG_LINE}"
)
DENIED_MEND: Final = (
    "the kernel, a seccomp profile or another security module refuses; look from a debug "
    f"container: {DEBUG_LINE}"
)


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a process cannot be looked into, and what to do about it; one line each."""

    detail: str
    mend: str


@dataclass(frozen=True, slots=True)
class _Credentials:
    users: frozenset[int]
    groups: frozenset[int]
    permitted: int
    effective: int


def hindrance(pid: int, proc: Path = PROC) -> Hindrance | None:
    """What will keep us from reading that process's memory; None where nothing is known to."""
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0  # no Yama in this kernel
    ours, theirs = _credentials(proc / "self"), _credentials(proc / str(pid))
    if ours is None or theirs is None:
        return None
    if scope >= 3:
        return Hindrance(
            "kernel.yama.ptrace_scope is 3: no process may look into another until the next boot",
            "set it to 1 or less in the node's sysctl configuration and boot the node",
        )
    if ours.effective & _SYS_PTRACE:
        return None
    if scope >= 1:
        return Hindrance(
            f"kernel.yama.ptrace_scope is {scope} and this process lacks the capability SYS_PTRACE",
            CAPABILITY_MEND,
        )
    if theirs.users != ours.users or theirs.groups != ours.groups:
        user = min(theirs.users - ours.users, default=min(theirs.users))
        return Hindrance(
            f"pid {pid} is of another user (uid {user}) and this process lacks the capability "
            "SYS_PTRACE",
            f"run as uid {user}, or {CAPABILITY_MEND}",
        )
    if theirs.permitted & ~ours.permitted:
        return Hindrance(
            f"pid {pid} has capabilities that this process lacks, which SYS_PTRACE makes up for",
            CAPABILITY_MEND,
        )
    return None


def _credentials(folder: Path) -> _Credentials | None:
    try:
        text = (folder / "status").read_text(errors="replace")
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return _Credentials(
            users=frozenset(map(int, fields["Uid"].split()[:3])),
            groups=frozenset(map(int, fields["Gid"].split()[:3])),
            permitted=int(fields["CapPrm"], 16),
            effective=int(fields["CapEff"], 16),
        )
    except (OSError, ValueError, KeyError):
        return None
