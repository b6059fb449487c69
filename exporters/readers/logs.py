"""Count the known lines in logs of vLLM and LMCache: files, pipes, kubectl's and Docker's dressing.

No text is kept, only kinds, counts and times. Lines that carry no time zone are taken for local
time, as their writers mean it; a time that kubectl put in front is preferred.
"""

from __future__ import annotations

import calendar
import datetime
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

from exporters import reasons
from exporters.log_lines import Package, find, is_known, release
from exporters.readers.page import plain
from exporters.snapshot import LogCount, Unseen

STDIN: Final = "-"
# Of a file the newest part, as from an engine that logs since last month.
MOST_BYTES: Final = 64 << 20  # some 7 s of reading
# A line with a whole configuration in it is some 10 KB; the words looked for come early.
MOST_LINE_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = 1 << 20
MOST_PROCESSES: Final = 1000
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
# kubectl logs --prefix, docker compose logs: whose line it is.
_ORIGIN: Final = re.compile(r"\[pod/(?P<pod>[\w./-]{1,300})\] |(?P<service>[\w.-]{1,100}) +\| ")
# 2026-12-01T12:00:00.123456789Z, then perhaps the container runtime's "stderr F ".
_STAMP: Final = re.compile(
    r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)) "
    r"(?:std(?:out|err) [FP] )?"
)
_VLLM: Final = re.compile(
    r"\((?P<process>[\w.:-]{1,64}) pid=(?P<pid>\d{1,10})\) ?"
    r"(?:(?P<level>[A-Z]{4,8}) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]{1,200}\] ?)?"
)
_VLLM_BARE: Final = re.compile(
    r"(?P<level>[A-Z]{4,8}) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]{1,200}\] ?"
)
_LMCACHE: Final = re.compile(
    r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3}\] LMCache (?P<level>[A-Z]{4,8}): ?"
)
_LMCACHE_END: Final = re.compile(r" \([\w.-]{1,100}\.py:\d{1,6}:(?P<logger>lmcache[\w.]{0,200})\)$")
# What the libraries say of their own releases as they start.
_RELEASES: Final = (
    ("lmcache", re.compile(r"LMCache initialized for role \S+ with version (\d[\w.+-]{0,40})")),
    (
        "vllm",
        re.compile(r"LLM engine \(v(\d[\w.+-]{0,40})\)|vLLM server version (\d[\w.+-]{0,40})"),
    ),
)


_QUIET: Final = frozenset({"DEBUG", "INFO"})


class LogError(ValueError):
    """A log that cannot be read; the message is one line with the mend."""


@dataclass(frozen=True, slots=True)
class LogSample:
    """All counts so far, and what of the logs is unseen."""

    counts: tuple[LogCount, ...]
    unseen: tuple[Unseen, ...]


@dataclass(slots=True)
class _Tally:
    count: int = 0
    first: float | None = None
    last: float | None = None


@dataclass(slots=True)
class _State:
    """What was counted; `at` is the last time that a line said."""

    at: float | None = None
    tallies: dict[tuple[str, str, str, int | None], _Tally] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    lines: int = 0
    known_heads: int = 0


class LogFile:
    """One log, read on from where the last read ended; a file that was replaced begins anew."""

    def __init__(self, path: str, follow: bool = False) -> None:
        """`follow`: it is read again and again, and a last line without an end is still under way.

        Raises LogError for what is no log: a folder, a missing or a compressed file.
        """
        self._follow = follow
        self.source = "stdin" if path == STDIN else plain(path)
        self._path = path
        self._state = _State()
        self._rest = b""
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._is_pipe_read = False
        self._skipped_bytes = 0
        if path != STDIN:
            _check(path, self.source)

    def read(self, stdin: IO[bytes] | None = None) -> LogSample:
        """What is new since the last time, on top of what was counted before.

        Of standard input or a pipe all of it, to its end: waits for the writer.
        """
        unseen = []
        try:
            if self._path == STDIN:
                if stdin is not None:
                    self._take(iter(lambda: stdin.read(_BLOCK_BYTES), b""), is_whole=True)
            else:
                self._read_file()
        except OSError as error:
            detail = f"{self.source}: {error.strerror}"
            unseen.append(Unseen(self.source, reasons.UNREADABLE, detail, "let this user read it"))
        return LogSample(self._counts(), (*unseen, *self._unseen()))

    def _read_file(self) -> None:
        if self._is_pipe_read:
            return  # opened once more it would wait for a writer that never comes
        with open(self._path, "rb") as file:
            status = os.fstat(file.fileno())
            is_file = stat.S_ISREG(status.st_mode)
            identity = (status.st_dev, status.st_ino)
            if is_file:
                if identity != self._identity or status.st_size < self._offset:
                    self._rest, self._offset = b"", 0
                    if status.st_size > MOST_BYTES:
                        self._offset = status.st_size - MOST_BYTES
                        self._skipped_bytes += self._offset
                file.seek(self._offset)
            self._is_pipe_read = not is_file
            self._identity = identity
            self._take(
                iter(lambda: file.read(_BLOCK_BYTES), b""), is_whole=not (is_file and self._follow)
            )
            if is_file:
                self._offset = file.tell()

    def _take(self, blocks: Iterator[bytes], is_whole: bool) -> None:
        now = time.time()
        for block in blocks:
            *lines, self._rest = (self._rest + block).split(b"\n")
            # The end of a line without an end is kept no longer than a line may be.
            self._rest = self._rest[:MOST_LINE_BYTES]
            for line in lines:
                _count(line, self._state, now)
        if self._rest and is_whole:
            _count(self._rest, self._state, now)
            self._rest = b""

    def _counts(self) -> tuple[LogCount, ...]:
        return tuple(
            LogCount(
                kind, tally.count, origin or self.source, process, pid, tally.first, tally.last
            )
            for (origin, kind, process, pid), tally in sorted(
                self._state.tallies.items(), key=lambda item: (item[0][:3], str(item[0][3]))
            )
        )

    def _unseen(self) -> Iterable[Unseen]:
        if self._skipped_bytes:
            detail = f"{self.source}: its first {self._skipped_bytes >> 20} MiB were not read"
            mend = f"only the newest {MOST_BYTES >> 20} MiB are; give a shorter log"
            yield Unseen(self.source, reasons.TRUNCATED, detail, mend)
        if not self._state.known_heads:
            what = "holds no line" if not self._state.lines else "holds no line as vLLM and LMCache"
            detail = f"{self.source}: {what} {'write them' if self._state.lines else 'at all'}"
            mend = "give the log of the engine's container (kubectl logs $POD)"
            yield Unseen(self.source, reasons.UNREADABLE, detail.strip(), mend)
        for package, name in (("lmcache", "LMCache"), ("vllm", "vLLM")):
            version = self._state.releases.get(package, "")
            if version and not is_known(package, version):
                detail = (
                    f"{self.source}: is of {name} {version}, whose lines were not read for this "
                    "table: a kind that is not counted may still have happened"
                )
                mend = "see docs/logs.md on how to add a release"
                yield Unseen(self.source, reasons.UNKNOWN_SCHEMA, detail, mend)


def _check(path: str, shown: str) -> None:
    mend = "give a text log, or - for standard input"
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise LogError(f"{shown} is a folder; {mend}")
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise LogError(f"{shown} is a device; {mend}")
        if not stat.S_ISREG(mode):
            return  # a pipe, as of <(kubectl logs ...)
        with Path(path).open("rb") as file:
            head = file.read(8)
    except FileNotFoundError as error:
        raise LogError(f"there is no file {shown}; {mend}") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LogError(f"{shown} cannot be read ({why}); {mend}") from error
    if head.startswith(_COMPRESSED):
        raise LogError(f"{shown} is compressed; unpack it into - (such as zcat {shown} | ...)")


def _count(raw: bytes, state: _State, now: float) -> None:
    text = _ANSI.sub("", raw[:MOST_LINE_BYTES].decode("utf-8", "replace")).rstrip("\r\n ")
    if not text:
        return
    state.lines += 1
    said = _undress(text, now)
    if said.at is not None:
        state.at = said.at
    if said.package is None:
        return  # a traceback's line, or somebody else's: what a prompt says is nobody's log
    state.known_heads += 1
    for package, pattern in _RELEASES:
        if (named := pattern.search(said.message)) is not None:
            state.releases[package] = release(next(filter(None, named.groups())))
    if said.package == "vllm" and said.level in _QUIET:
        return  # where prompts are logged
    line = find(said.message, said.logger, state.releases, said.package)
    if line is None:
        return
    key = (said.origin, line.kind, said.process, said.pid)
    if key not in state.tallies and len(state.tallies) >= MOST_PROCESSES:
        key = ("", line.kind, "", None)
    tally = state.tallies.setdefault(key, _Tally())
    tally.count += 1
    if state.at is not None:
        tally.first = state.at if tally.first is None else min(tally.first, state.at)
        tally.last = state.at if tally.last is None else max(tally.last, state.at)


@dataclass(frozen=True, slots=True)
class _Said:
    """One line undressed. `package` is None for a line of neither library's making."""

    message: str
    package: Package | None = None
    logger: str = ""
    level: str = ""
    process: str = ""
    pid: int | None = None
    at: float | None = None
    origin: str = ""


def _undress(text: str, now: float) -> _Said:
    outer: float | None = None
    origin = ""
    if (prefix := _ORIGIN.match(text)) is not None:
        origin = prefix["pod"] or prefix["service"]
        text = text[prefix.end() :]
    if text.startswith('{"log":'):
        text, outer = _docker(text)
    if (stamp := _STAMP.match(text)) is not None:
        outer = _zoned(stamp["stamp"])
        text = text[stamp.end() :]
    said = _as_json(text, now) if text.startswith("{") else _as_text(text, now)
    return replace(said, origin=origin, at=said.at if outer is None else outer)


def _as_text(text: str, now: float) -> _Said:
    said = _Said(text)
    if (head := _VLLM.match(text) or _VLLM_BARE.match(text)) is not None:
        found = head.groupdict()
        said = _Said(
            text[head.end() :],
            package="vllm",
            level=found["level"] or "",
            process=found.get("process") or "",
            pid=int(found["pid"]) if found.get("pid") else None,
            at=_yearless(found["stamp"], now) if found["stamp"] else None,
        )
    # Behind vLLM's own head too, as earlier releases put it before each line of the process.
    if (head := _LMCACHE.match(said.message)) is not None:
        said = replace(
            said,
            message=said.message[head.end() :],
            package="lmcache",
            level=head["level"],
            at=said.at if said.at is not None else _local(head["stamp"]),
        )
    # The last line of a long message has only this of its logger.
    if (end := _LMCACHE_END.search(said.message)) is not None:
        said = replace(
            said, message=said.message[: end.start()], package="lmcache", logger=end["logger"]
        )
    return said


def _docker(text: str) -> tuple[str, float | None]:
    try:
        item = json.loads(text)
        return _ANSI.sub("", str(item["log"])).rstrip("\r\n"), _zoned(str(item.get("time", "")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text, None


def _as_json(text: str, now: float) -> _Said:
    """vLLM's JSON lines; another JSON line is nobody's."""
    try:
        item: dict[str, Any] = json.loads(text)
        message, logger = str(item["message"]), str(item["name"])
        level, stamp = str(item["levelname"]), str(item["asctime"])[:19]
    except (ValueError, TypeError, KeyError, RecursionError):
        return _Said(text)
    root = logger.partition(".")[0]
    process = item.get("process")
    return _Said(
        message,
        package="vllm" if root == "vllm" else "lmcache" if root == "lmcache" else None,
        logger=logger,
        level=level,
        process=plain(str(item.get("processName", "")))[:64],
        pid=process if isinstance(process, int) else None,
        at=_local(stamp) if stamp[4:5] == "-" else _yearless(stamp[:14], now),
    )


def _zoned(stamp: str) -> float | None:
    # The standard library reads microseconds, container runtimes write nanoseconds.
    short = re.sub(r"(\.\d{6})\d+", r"\1", stamp.replace("Z", "+00:00"))
    try:
        moment = datetime.datetime.fromisoformat(short)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _local(stamp: str) -> float | None:
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _yearless(stamp: str, now: float) -> float | None:
    """The last such day that is not in the future (by more than a day, for clocks that differ)."""
    year = time.localtime(now).tm_year
    for candidate in (year, year - 1, *range(year - 2, year - 9, -1)):
        if stamp.startswith("02-29") and not calendar.isleap(candidate):
            continue
        at = _local(f"{candidate}-{stamp}")
        if at is not None and at <= now + 86400:
            return at
    return None
