"""Reads request traces line by line, so that a file larger than memory can be replayed."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

FORMATS: Final = ("mooncake", "aiperf", "azure", "router")
MAX_LINE_CHARACTERS: Final = 16 * 1024 * 1024
_AZURE: Final = {
    "time": "TIMESTAMP",
    "input_tokens": "ContextTokens",
    "output_tokens": "GeneratedTokens",
}
ROUTER_FIELDS: Final = ("time", "input_tokens", "output_tokens", "prompt")


class TraceError(ValueError):
    """A trace that cannot be replayed: one line that says what, where, and the mend."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: seconds since the first, tokens in and out, and what its prompt is made of."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    prompt: str | None = None


def read(path: Path, form: str, columns: Mapping[str, str] | None = None) -> Iterator[Request]:
    """Yield the requests of `path` in file order, one line in memory at a time.

    `columns` maps ROUTER_FIELDS to the names of a router log. Raises TraceError on a file that is
    empty, unsorted, or holds a value that no request can have.
    """
    if form not in FORMATS:
        raise TraceError(f"{form}: no such format; take one of {', '.join(FORMATS)}")
    names = dict(columns or {})
    unknown = sorted(set(names) - set(ROUTER_FIELDS))
    if unknown:
        raise TraceError(f"column map: {unknown[0]}: unknown; map {', '.join(ROUTER_FIELDS)}")
    if form == "router" and not {"time", "input_tokens"} <= set(names):
        raise TraceError("column map: a router log needs time=COLUMN and input_tokens=COLUMN")
    first_s = last_s = None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in _rows(path, file, form):
                where = f"{path}:{line}"
                now_s, request = _request(row, form, names, where)
                if first_s is None or last_s is None:
                    first_s = last_s = now_s
                if now_s < last_s:
                    raise TraceError(f"{where}: sent before the line above; sort the trace by time")
                last_s = now_s
                yield Request(now_s - first_s, *request)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    if first_s is None:
        raise TraceError(f"{path}: holds no request; check the file and --format")


def _rows(path: Path, file: TextIO, form: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if form == "azure" or (form == "router" and path.suffix == ".csv"):
        table = csv.DictReader(_lines(path, file))
        for row in table:
            yield table.line_num, row
        return
    for number, line in enumerate(_lines(path, file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise TraceError(f"{path}:{number}: not JSON; one object a line") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}:{number}: not an object; one object a line")
        yield number, row


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARACTERS:  # a file without line ends must not fill memory
            raise TraceError(
                f"{path}:{number}: longer than {MAX_LINE_CHARACTERS} characters; "
                "write one request a line"
            )
        yield line


def _request(
    row: Mapping[str, Any], form: str, columns: Mapping[str, str], where: str
) -> tuple[float, tuple[int, int, tuple[int, ...], str | None]]:
    if form in ("mooncake", "aiperf"):
        at_s = _number(row, "timestamp", where) / 1000
        prompt = row.get("text_input", row.get("text")) if form == "aiperf" else None
        if prompt is not None and not isinstance(prompt, str):
            raise TraceError(f"{where}: its text is not a string; one prompt a line")
        tokens = _tokens(row, "input_length", where) if prompt is None else 0
        output = _tokens(row, "output_length", where) if "output_length" in row else 1
        ids = row.get("hash_ids") or []
        if not isinstance(ids, list) or any(type(i) is not int or i < 0 for i in ids):
            raise TraceError(f"{where}: hash_ids is no list of whole numbers from 0")
        return at_s, (tokens, output, tuple(ids), prompt)
    names = _AZURE if form == "azure" else columns
    at_s = _time(row, names["time"], where)
    tokens = _tokens(row, names["input_tokens"], where)
    output = _tokens(row, names["output_tokens"], where) if "output_tokens" in names else 1
    text = row.get(names["prompt"]) if "prompt" in names else None
    if text is not None and not isinstance(text, str):
        raise TraceError(f"{where}: {names['prompt']} is not a string; map another column")
    return at_s, (tokens, output, (), text)


def _number(row: Mapping[str, Any], name: str, where: str) -> float:
    if row.get(name) in (None, ""):
        raise TraceError(f"{where}: has no {name}; check --format or the column map")
    try:
        value = math.nan if isinstance(row[name], bool) else float(row[name])
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{where}: {name} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise TraceError(f"{where}: {name} is {value:g}; it must be a number from 0")
    return value


def _tokens(row: Mapping[str, Any], name: str, where: str) -> int:
    value = _number(row, name, where)
    if value != int(value):
        raise TraceError(f"{where}: {name} is {value:g}; tokens are whole")
    return int(value)


def _time(row: Mapping[str, Any], name: str, where: str) -> float:
    """Seconds: a number, or ISO 8601, in UTC where it names no zone (a log has no summer time)."""
    value = row.get(name)
    try:
        float(str(value))  # first, since ISO 8601 would read 20231116 as a day
    except ValueError:
        pass
    else:
        return _number(row, name, where)
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return _number(row, name, where)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
