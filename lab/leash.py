"""Runs a command that the kernel kills as soon as the process that started it is gone.

Started as `python -I -S leash.py PARENT_PID POLICY COMMAND...`: after the exec the pid is the
command's. Without this a `kill -9` of the lab would leave its servers behind. The policy "batch"
keeps the command's threads, as they wake, from taking the CPU from one that runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent thread ends; leave now if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the request was in place
        os._exit(1)


def main(arguments: list[str]) -> None:
    die_with(int(arguments[0]))
    if arguments[1] == "batch":
        with contextlib.suppress(OSError):  # a sandbox may forbid it; the lab runs without too
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    command = arguments[2:]
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
