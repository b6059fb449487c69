"""Why a rank is late, for what the operating system and the interpreter know of it.

Read once a second on the heartbeat's thread, outside of any step: time in which the container's CPU
quota held all its threads, time in which the main thread (the step's) was ready and had no CPU, and
page faults that waited for a disk. The interpreter's garbage collections are timed as they happen.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from exporters import page_layout as layout
from patched_engine import recorder

_C: Final = layout.COUNTER_INDEX
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
# name in cpu.stat -> nanoseconds in one: version 2 and version 1 of cgroups.
_THROTTLED: Final = {b"throttled_usec": 1000, b"throttled_time": 1}


class Lateness:
    """Adds to the page what each source has counted since the last poll."""

    def __init__(self, cpu_stat: Path | None, tasks: Path = Path("/proc/self/task")) -> None:
        self._cpu_stat = cpu_stat
        self._tasks = tasks
        self._sources: dict[str, Callable[[], int]] = {
            "throttled_nanoseconds": self._throttled_ns,
            "runqueue_nanoseconds": self._runqueue_ns,
            "major_faults": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        }
        self._before: dict[str, int] = {}

    def poll(self) -> None:
        """One reading. A source that is not there counts nothing."""
        page = recorder.current()
        if page is None:
            return
        for name, read in self._sources.items():
            try:
                now = read()
            except (OSError, ValueError, IndexError):
                continue
            if (moved := now - self._before.get(name, now)) > 0:
                page.add(_C[name], moved)
            self._before[name] = now

    def _throttled_ns(self) -> int:
        if self._cpu_stat is None:
            return 0
        for line in self._cpu_stat.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name in _THROTTLED:
                return int(value) * _THROTTLED[name]
        return 0

    def _runqueue_ns(self) -> int:
        # The main thread's number is the process's, a fork's own.
        return int((self._tasks / str(os.getpid()) / "schedstat").read_bytes().split()[1])


class Collections:
    """A gc callback that times the collections, which stop every thread of this process."""

    def __init__(self) -> None:
        self._began_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        try:
            if phase == "start":
                self._began_ns = time.monotonic_ns()
                return
            page = recorder.current()
            if page is not None and self._began_ns:
                page.add(_C["gc_pauses"])
                page.add(_C["gc_nanoseconds"], time.monotonic_ns() - self._began_ns)
        except Exception as error:
            recorder.fault("gc callback", error)


def find_cpu_stat(root: Path = CGROUP_ROOT, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The cpu.stat of this process's own cgroup, None where there is none."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = root / "cpu" if controllers else root
        # In a container the path is the host's, and the root shows this container's own.
        for place in (folder / path.lstrip("/"), folder):
            if (place / "cpu.stat").is_file():
                return place / "cpu.stat"
    return None


def install() -> None:
    """Begin with the page's first second; a page that comes later is found then."""
    reader = Lateness(find_cpu_stat())
    recorder.when_paged(lambda page: page.add_poller(reader.poll))
    gc.callbacks.append(Collections())
