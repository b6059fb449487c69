"""Which format a file is in, told by its content; its name is asked for the rank only."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from exporters import reasons
from exporters.readers.profiles import nsys
from exporters.readers.profiles import table as t
from exporters.readers.profiles.errors import ProfileError
from exporters.readers.profiles.stream import GZIP_MAGIC, Source, unreadable

_HEAD_BYTES: Final = 64 << 10
_PICKLES: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_KNOWN_OTHERS: Final = (
    (b"PK\x03\x04", "a zip archive", "unpack it, and give the traces inside"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", "unpack it: zstd -d"),
    (b"STSCPAGE", "a page of a running engine", "read it with stallscope diagnose --from"),
    (b"\x7fELF", "a program", "give a profile"),
)
_REPORT_NAMES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_RANK: Final = re.compile(r"(?:rank|worker|dp\d*_?tp|gpu|device)[-_. ]?(\d+)", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"(?:^|[-_.])(\d{1,4})$")
_SUFFIXES: Final = re.compile(
    r"(\.(gz|json|jsonl|pt|trace|log|sqlite|pkl|pickle))+$", re.IGNORECASE
)


def format_of(path: Path) -> str:
    """One of "nsys", "kineto", "nccl-inspector" or "flight-recorder". Raises ProfileError."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(mode):
        what = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
        raise ProfileError(str(path), reasons.NOT_A_PROFILE, what, "give the files themselves")
    if path.name.lower().endswith(_REPORT_NAMES):
        raise ProfileError(
            str(path),
            reasons.NOT_A_PROFILE,
            "is a report that only nsys reads",
            f"export it: nsys export --type sqlite {path.name}",
        )
    with Source(path) as source:
        head = source.read(_HEAD_BYTES)
    return _format_of_head(path, head)


def _format_of_head(path: Path, head: bytes) -> str:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        size = os.stat(path).st_size
        what = "is empty (0 bytes)" if not size else "holds nothing but blanks"
        raise ProfileError(str(path), reasons.TRUNCATED, what, "record again")
    if head.startswith(nsys.MAGIC):
        return nsys.FORMAT
    if head.startswith(_PICKLES):
        return "flight-recorder"
    if text[:1] in b"{[":
        return _format_of_json(text)
    for magic, what, mend in _KNOWN_OTHERS:
        if head.startswith(magic):
            raise ProfileError(str(path), reasons.NOT_A_PROFILE, f"is {what}", mend)
    inner = "unpacks to" if head[:2] != GZIP_MAGIC and _is_packed(path) else "is"
    raise ProfileError(
        str(path),
        reasons.NOT_A_PROFILE,
        f"{inner} no profile that stallscope knows",
        "give an nsys .sqlite export, a torch.profiler .json(.gz), NCCL Inspector JSON or a "
        "Flight Recorder dump",
    )


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def _format_of_json(text: bytes) -> str:
    first = text.split(b"\n", 1)[0]
    if b'"coll_perf"' in first or b'"p2p_perf"' in first or _looks_inspected(text):
        return "nccl-inspector"
    if b'"pg_config"' in text and b'"traceEvents"' not in text and b'"distributedInfo"' not in text:
        return "flight-recorder"
    if re.match(rb'\{\s*"(entries|pg_status|nccl_version|version)"', text) and (
        b'"profiling_name"' in text or b'"record_id"' in text
    ):
        return "flight-recorder"
    return "kineto"


def _looks_inspected(text: bytes) -> bool:
    return b'"coll_sn"' in text[:8192] and b'"traceEvents"' not in text


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name states: `rank3`, `worker_3`, or a last number (`trace_3`)."""
    stem = _SUFFIXES.sub("", path.name)
    found = _RANK.findall(stem)
    if found:
        return _small(found[-1])
    last = _LAST_NUMBER.search(stem)
    return _small(last[1]) if last else None


def _small(digits: str) -> int | None:
    number = int(digits[:9])
    return number if number < t.MAX_RANK and len(digits) < 9 else None
