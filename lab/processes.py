"""Starts and ends everything a run is made of: leashed children, the janitor, and the signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Final

from lab import janitor, leash

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked the lab to stop; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """Turns SIGINT, SIGTERM and SIGHUP into a flag that the lab's own loops look at.

    An exception raised between a fork and the line that notes its pid would lose the process, so
    nothing is raised from the handler. `check` raises Interrupted where that is safe.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup keeps its meaning
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number

    def check(self) -> None:
        if self.number:
            raise Interrupted(self.number)

    def sleep(self, seconds: float) -> None:
        """Sleep, but leave by Interrupted within 50 ms of a signal."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, 0.05))
        self.check()


class Household:
    """The private folder of one run, its children, and the janitor that outlives us."""

    def __init__(self, policy: str = "normal") -> None:
        self._policy = policy
        self.children: list[subprocess.Popen[Any]] = []
        self.told: dict[int, int] = {}
        self._janitor: subprocess.Popen[str] | None = None
        self.folder = Path()
        self._pages: list[str] = []

    def __enter__(self) -> Household:
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", janitor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._janitor.stdout is not None
        self._janitor.stdout.readline()  # its signals are in place
        self._janitor.stdout.close()
        # Named before it is made, so that there is no moment in which nobody would remove it.
        self.folder = (
            Path(tempfile.gettempdir()) / f"stallscope-lab-{os.getpid()}-{time.time_ns():x}"
        )
        self._tell(f"folder {self.folder}")
        self.folder.mkdir(mode=0o700)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        if self._janitor is None or self._janitor.stdin is None:
            return
        try:
            self._janitor.stdin.write(line + "\n")
            self._janitor.stdin.flush()
        except OSError:
            return  # somebody killed the janitor: close() then sweeps by itself

    def watch(self, pid: int) -> None:
        """Have this process ended with the run."""
        self.told[pid] = janitor.start_ticks(pid)
        self._tell(f"pid {pid} {self.told[pid]}")

    def watch_pages(self, folder: Path) -> None:
        """Have the pages of this run's processes removed from a folder that is the user's."""
        self._pages.append(str(folder))
        self._tell(f"pages {folder}")

    def start(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> subprocess.Popen[Any]:
        """Start a leashed child in its own session: Ctrl-C reaches us alone, and we end it."""
        with open(log, "ab") as out:
            child: subprocess.Popen[Any] = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), self._policy),
                    *command,
                ],
                stdin=stdin,
                stdout=out if stdout is None else stdout,
                stderr=out,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
            )
        self.watch(child.pid)
        self.children.append(child)
        return child

    def close(self) -> None:
        """End every process and remove the folder; returns when that is done."""
        for child in self.children:
            for stream in (child.stdin, child.stdout):
                _close(stream)
        ended = None
        if self._janitor is not None:
            _close(self._janitor.stdin)
            try:
                ended = self._janitor.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._janitor.kill()
                self._janitor.wait()
        if ended != 0 and self.folder.name:
            janitor.sweep(self.told, [str(self.folder)], self._pages)
        for child in self.children:
            child.wait()


def _close(stream: IO[Any] | None) -> None:
    if stream is not None:
        try:
            stream.close()
        except OSError:
            return
