"""Ends a run's processes and removes its folder, whatever became of the process that began it.

A session of its own, so that no Ctrl-C reaches it. It reads lines from standard input
(`folder PATH`, `pages PATH`, `pid PID STARTTIME`) and works when that pipe closes: at the normal
end, after an error, and after a `kill -9` of the lab alike. A pid is ended only while its start
time is the one that was reported, so a pid that was used again is left alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

_PATIENCE_SECONDS = 5.0


def start_ticks(pid: int) -> int:
    """The kernel's start time of a process (clock ticks since boot); 0 when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rsplit(b")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def sweep(processes: dict[int, int], folders: list[str], pages: list[str]) -> None:
    """SIGKILL every process that still is the one we were told of, then remove the folders.

    In the `pages` folders, which are the user's, only the files of those processes go.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        alive = [pid for pid, ticks in processes.items() if ticks and start_ticks(pid) == ticks]
        if not alive:
            break
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
    for folder in folders:
        for _ in range(3):  # a process that is being killed may still be making a file
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.05)
    for folder in pages:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            owner = name.lstrip(".").split("-")[0]
            if owner.isdigit() and int(owner) in processes:
                os.unlink(os.path.join(folder, name))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes: dict[int, int] = {}
    folders: list[str] = []
    pages: list[str] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "folder":
            folders.append(rest)
        elif word == "pages":
            pages.append(rest)
        elif word == "pid":
            pid, ticks = rest.split()
            processes[int(pid)] = int(ticks)
    sweep(processes, folders, pages)


if __name__ == "__main__":
    main()
