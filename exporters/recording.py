"""Evaluations on disk, a line each: what `--record` writes, and what lies inside a bundle.

A line is one JSON object as /snapshot has it; the first line says what the file is. A writer that
is killed leaves at most its last line unfinished, which a reader leaves out.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from exporters.snapshot import KEPT_PICTURES, Evaluation, Snapshot
from exporters.snapshot_json import SnapshotError, from_json, to_json

HEAD: Final = '{"stallscope_recording": 1}'
HEAD_START: Final = b'{"stallscope_recording"'
# A full file is renamed to FILE.1 in place of an older one: twice this is the most on disk.
MOST_BYTES: Final = 200_000_000
# Lines of a file that are read: the newest; ten minutes at one each second.
MOST_READ: Final = 600
_MOST_LINE_BYTES: Final = 64_000_000


class RecordingError(ValueError):
    """A file that is no recording; one line that says where."""


def line_of(evaluation: Evaluation) -> str:
    """One line, without its end."""
    return json.dumps(to_json(evaluation), allow_nan=False, separators=(",", ":"))


def read_lines(lines: Iterable[bytes], name: str) -> list[Evaluation]:
    """The newest evaluations, oldest first, each with those before it as `earlier`.

    Raises RecordingError for what is none, or holds none.
    """
    kept: deque[tuple[int, bytes]] = deque(maxlen=MOST_READ)
    for number, line in enumerate(lines, start=1):
        if number == 1:
            if line.strip() != HEAD.encode():
                raise RecordingError(f"{name}: does not begin as a recording does")
        elif len(line) > _MOST_LINE_BYTES:
            raise RecordingError(f"{name}: line {number} is longer than any picture")
        elif line.endswith(b"\n") and line.strip():  # else its writer was cut off
            kept.append((number, line))
    faults: list[str] = []
    found = list(_evaluations(kept, faults))
    if not found:
        raise RecordingError(f"{name}: {faults[0] if faults else 'holds no picture'}")
    return found


def _evaluations(lines: Iterable[tuple[int, bytes]], faults: list[str]) -> Iterator[Evaluation]:
    """Those that can be read; a torn line costs only itself."""
    earlier: deque[Snapshot] = deque(maxlen=KEPT_PICTURES)
    for number, line in lines:
        try:
            evaluation = from_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            why = error if isinstance(error, SnapshotError) else "is not JSON"
            faults.append(f"line {number} {why}")
            continue
        picture = dataclasses.replace(evaluation.snapshot, earlier=tuple(earlier))
        yield dataclasses.replace(evaluation, snapshot=picture)
        earlier.append(dataclasses.replace(evaluation.snapshot, unseen=()))


class Recorder:
    """Appends to one file; a fault of the disk is told once and recording goes on when it can.

    `add` never raises. Not for several threads at once.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._file: IO[str] | None = None
        self.fault = ""

    def open(self) -> IO[str]:
        """Begin, or go on where an earlier one ended. Raises OSError."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        file = self._file = os.fdopen(fd, "a", encoding="utf-8")
        # An earlier writer may have been killed inside a line: the next one begins anew.
        file.write("\n" if os.fstat(fd).st_size else f"{HEAD}\n")
        file.flush()
        return file

    def add(self, evaluation: Evaluation) -> None:
        """Write one line, and begin a new file where this one is full."""
        try:
            file = self._file or self.open()
            if file.tell() > self._most_bytes:
                self.close()
                os.replace(self._path, f"{self._path}.1")
                file = self.open()
            file.write(line_of(evaluation) + "\n")
            file.flush()
            self.fault = ""
        except OSError as error:
            self.fault = f"{self._path}: {error.strerror or error}"
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # what was buffered is lost
                self.fault = f"{self._path}: {error.strerror or error}"
