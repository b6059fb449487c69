"""Keeps a run's results on disk while it runs, so that an interrupted run loses none of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final, TextIO

SCHEMA: Final = 2  # 1 was one JSON object, which is still read
_BAND_STARTS_TOKENS: Final = (0, 2_048, 8_192, 32_768, 131_072)


class ResultError(ValueError):
    """A result that cannot be read: one line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request: due and first-token times in seconds; `ttft_s` None where it was not `ok`."""

    due_s: float
    input_tokens: int
    ttft_s: float | None


class Writer:
    """Writes one JSON line a request as it ends, and a last line that says how the run ended."""

    def __init__(self, file: FileIO) -> None:  # unbuffered: nothing is left to fail at its close
        self._file = file
        self.fault: str | None = None
        self.line({"schema": SCHEMA})

    def line(self, row: dict[str, Any]) -> None:
        """Add one line; a full disk is kept as `fault`, once, and never raises into a send."""
        if self.fault is not None:
            return
        try:
            line = json.dumps(row).encode() + b"\n"
            if self._file.write(line) != len(line):
                self.fault = "the result cannot be written: cut short; is the disk full?"
        except OSError as error:
            self.fault = f"the result cannot be written: {error.strerror}"

    def end(self, stopped: str | None) -> None:
        self.line({"ended": True, "stopped": stopped})


def read(path: Path) -> list[Row]:
    """The requests of a result file by their due time; raises ResultError."""
    rows = [_row(path, number, row) for number, row in enumerate(_raw(path), 1)]
    if not rows:
        raise ResultError(f"{path}: holds no requests; give a result of `stallscope replay`")
    return sorted(rows, key=lambda row: row.due_s)


def thirds(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The run in three parts of equally many requests; `rows` are sorted by due time."""
    for place, name in enumerate(("first third", "second third", "last third")):
        yield name, rows[len(rows) * place // 3 : len(rows) * (place + 1) // 3]


def bands(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The requests by prompt length in tokens; a band without requests is left out."""
    for start, end in zip(_BAND_STARTS_TOKENS, (*_BAND_STARTS_TOKENS[1:], None), strict=True):
        inside = [
            r for r in rows if r.input_tokens >= start and (end is None or r.input_tokens < end)
        ]
        if inside:
            yield (f"{start}..{end - 1} tokens" if end else f"{start} tokens and more"), inside


def _raw(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
            head = _parse(first)
            if isinstance(head, dict) and head.get("schema") == SCHEMA:
                yield from _lines(path, file)
                return
            whole = _parse(first + file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from None
    rows = whole.get("requests") if isinstance(whole, dict) else None
    if not isinstance(rows, list):
        raise ResultError(f"{path}: holds no requests; give a result of `stallscope replay`")
    yield from rows


def _lines(path: Path, file: TextIO) -> Iterator[Any]:
    for number, line in enumerate(file, 2):
        row = _parse(line)
        if row is None and not line.endswith("\n"):
            return  # killed within its last line: all lines above are whole
        if row is None:
            raise ResultError(f"{path}:{number}: not JSON; one request a line")
        if not (isinstance(row, dict) and row.get("ended")):
            yield row


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _row(path: Path, number: int, row: Any) -> Row:
    if not isinstance(row, dict) or "ttft_s" not in row or "outcome" not in row:
        raise ResultError(f"{path}: request {number} has no ttft_s or no outcome")
    numbers = {"due_s": row.get("due_s", 0), "input_tokens": row.get("input_tokens", 0)}
    if row["outcome"] == "ok":
        numbers["ttft_s"] = row["ttft_s"]
    for name, value in numbers.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ResultError(f"{path}: request {number}: {name} must be a number from 0")
    return Row(numbers["due_s"], int(numbers["input_tokens"]), numbers.get("ttft_s"))
