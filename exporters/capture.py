"""Keeps the last ten minutes, records them on request, and saves a bundle when it gets critical.

All of it in a thread of its own: a tick only hands its result over, and a slow disk costs neither a
tick nor a scrape. The restart that follows a critical finding destroys the evidence; this does not.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporters import bundle
from exporters.recording import HEAD, Recorder, line_of, read_lines
from exporters.snapshot import Evaluation

KEPT_SECONDS: Final = 600.0
EVERY_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1800.0  # before the same finding is captured once more
MOST_KEPT: Final = 5
MOST_BYTES: Final = 200_000_000
PREFIX: Final = "capture-"
_WAITING: Final = 8  # ticks; a disk that is slower than that loses some

logger = logging.getLogger("stallscope")


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What is kept: `folder` for bundles, `record` for a recording with a picture every so often;
    None for neither."""

    folder: Path | None = None
    record: Path | None = None
    every_seconds: float = EVERY_SECONDS


class Capturer:
    """Takes ticks with `take`, which never waits and never raises."""

    def __init__(
        self,
        settings: CaptureSettings,
        pages_dir: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._pages_dir = pages_dir
        self._clock = clock
        self._queue: queue.Queue[Evaluation | None] = queue.Queue(_WAITING)
        self._kept: deque[tuple[float, bytes]] = deque()  # when, and its line, compressed
        self._captured: dict[str, float] = {}
        self._recorder = Recorder(settings.record) if settings.record is not None else None
        self._said_fault = ""
        self._recorded_at = self._kept_at = float("-inf")
        self.captures = 0
        self.faults = 0
        self._thread = threading.Thread(target=self._run, name="stallscope-capture", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After what was handed over is written, or 5 s."""
        try:
            self._queue.put(None, timeout=1.0)
        except queue.Full:
            return
        self._thread.join(5.0)

    def take(self, evaluation: Evaluation) -> None:
        """One finished tick."""
        try:
            self._queue.put_nowait(evaluation)
        except queue.Full:
            self.faults += 1

    def _run(self) -> None:
        while (evaluation := self._queue.get()) is not None:
            try:
                self.handle(evaluation)
            except Exception as error:
                self._fault(f"a capture failed: {error!r}")
        if self._recorder is not None:
            self._recorder.close()

    def handle(self, evaluation: Evaluation) -> None:
        """Keep, record, capture: what `take` has done in the thread."""
        now = self._clock()
        if self._recorder is not None and now - self._recorded_at >= self._settings.every_seconds:
            self._recorded_at = now
            self._recorder.add(evaluation)
            if self._recorder.fault:
                self._fault(self._recorder.fault)
        if self._settings.folder is None:
            return
        if now - self._kept_at >= EVERY_SECONDS:
            self._kept_at = now
            self._kept.append((now, zlib.compress(line_of(evaluation).encode(), 1)))
        while self._kept and now - self._kept[0][0] > KEPT_SECONDS:
            self._kept.popleft()
        critical = [f.id for f in evaluation.findings if f.severity == "critical"]
        fresh = [
            name
            for name in dict.fromkeys(critical)
            if now - self._captured.get(name, float("-inf")) >= AGAIN_SECONDS
        ]
        if fresh:
            self._captured.update(dict.fromkeys(fresh, now))
            self._capture(self._settings.folder, evaluation, fresh[0])

    def _capture(self, folder: Path, evaluation: Evaluation, reason: str) -> None:
        path = folder / f"{PREFIX}{time.strftime('%Y%m%dT%H%M%S')}-{reason}.tar.gz"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lines = [f"{HEAD}\n".encode()]
            lines += [zlib.decompress(line) + b"\n" for _, line in self._kept]
            before = read_lines(lines, "kept") if self._kept else []
            pictures = [*before, evaluation]
            bundle.write(path, pictures, self._pages_dir, reason, most_bytes=MOST_BYTES // 2)
            self.captures += 1
            logger.warning("stallscope: %s is captured in %s", reason, path)
            self._make_room(folder)
        except OSError as error:
            self._fault(f"{path}: {error.strerror or error}")

    def _make_room(self, folder: Path) -> None:
        """The newest few, and no more bytes than allowed; this one stays."""
        found = sorted(folder.glob(f"{PREFIX}*.tar.gz"), key=lambda p: p.stat().st_mtime_ns)
        sizes = {path: path.stat().st_size for path in found}
        while len(found) > 1 and (
            len(found) > MOST_KEPT or sum(sizes[p] for p in found) > MOST_BYTES
        ):
            os.unlink(found.pop(0))

    def _fault(self, text: str) -> None:
        self.faults += 1
        if text != self._said_fault:  # a full disk stays full: once is enough
            self._said_fault = text
            logger.warning("stallscope: %s", text)
