"""Runs a command that the kernel kills as soon as the process that started it is gone.

Started as `python -I -S leash.py PARENT_PID COMMAND...`: after the exec the pid is the command's.
Without this a `kill -9` of the lab would leave its servers behind.
"""

from __future__ import annotations

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
    try:
        os.execv(arguments[1], arguments[1:])
    except OSError as error:
        print(f"cannot run {arguments[1]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
