"""Nsight Systems' SQLite exports (schema 3.x): every rank of one node in one file, on one clock."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from exporters import reasons
from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.errors import ProfileError
from exporters.snapshot import Unseen

FORMAT: Final = "nsys"
MAGIC: Final = b"SQLite format 3\x00"
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_RANGES: Final = "NVTX_EVENTS"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_MAJOR: Final = 3  # what the columns below are named after
_ROWS: Final = 65536
# Kinds of copies (ENUM_CUDA_MEMCPY_OPER): the array and unified forms count like the plain ones.
_D2H: Final = (2, 4, 12)
_H2D: Final = (1, 3, 11)
_PUSH_POP: Final = 59  # NvtxPushPopRange
_START_END: Final = 60  # NvtxStartEndRange
_LONG_CALL_NS: Final = 100_000

_Rows = npt.NDArray[np.int64]


def read(path: Path) -> t.Part:
    """One export as a Part whose rows have ranks of their own. Raises ProfileError."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    except (sqlite3.Error, ValueError) as error:
        raise ProfileError(str(path), reasons.UNREADABLE, f"cannot be opened: {error}") from error
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    try:
        return _Export(path, connection).part()
    except (sqlite3.Error, OverflowError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        raise ProfileError(
            str(path),
            reasons.UNREADABLE,
            f"is damaged: {text}",
            "export it again: nsys export --type sqlite REPORT.nsys-rep",
        ) from error
    finally:
        connection.close()


class _Export:
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.sql = connection
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(row[0]) for row in listed}
        self.unseen: list[Unseen] = []
        self.left_out: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.events = 0

    def part(self) -> t.Part:
        schema = self._schema()
        texts = self._string_ids()
        gpu = [rows for rows in (self._kernels(texts), *self._copies()) if rows is not None]
        ranks = self._rank_of_devices(gpu)
        tables = [self._gpu_table(rows, ranks) for rows in gpu]
        by_process = self._rank_of_processes(ranks)
        tables += self._ranges(texts, by_process)
        tables += self._calls(texts, by_process)
        return t.Part(
            path=str(self.path),
            format=FORMAT,
            schema=schema,
            table=t.joined(tables),
            names=tuple(self.names),
            clock=f"the clock of {self.path}",
            device=self._device(),
            events=self.events,
            left_out=self.left_out,
            unseen=tuple(self.unseen),
        )

    def _schema(self) -> str:
        version = ""
        if "META_DATA_EXPORT" in self.tables:
            rows = self.sql.execute(
                "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'"
            ).fetchall()
            version = str(rows[0][0]) if rows else ""
        if not version and "StringIds" not in self.tables:
            raise ProfileError(
                str(self.path),
                reasons.NOT_A_PROFILE,
                "is a database, but no Nsight Systems export",
                "make one with nsys export --type sqlite REPORT.nsys-rep",
            )
        major = version.partition(".")[0]
        if version and major != str(_MAJOR):
            raise ProfileError(
                str(self.path),
                reasons.UNKNOWN_SCHEMA,
                f"has the export schema {version}, and {_MAJOR}.x is what can be read",
                "export the report with an nsys that writes it",
            )
        if _KERNELS not in self.tables:
            self._missing(_KERNELS, "no kernel was recorded", "record with nsys --trace=cuda,nvtx")
        return version or "not stated"

    def _missing(self, name: str, what: str, mend: str) -> None:
        detail = f"{self.path} has no table {name}: {what}"
        self.unseen.append(Unseen(str(self.path), reasons.MISSING_TABLE, detail, mend))

    def _string_ids(self) -> dict[int, str]:
        if "StringIds" not in self.tables:
            return {}
        return {int(i): str(v) for i, v in self.sql.execute("SELECT id, value FROM StringIds")}

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self.sql.execute(f"PRAGMA table_info({table})")}

    def _select(self, table: str, wanted: Sequence[str], where: str = "") -> Iterator[_Rows]:
        """Pieces of shape (n, len(wanted)); wanted are columns, or products of them. What this
        schema lacks, or NULL, is -1."""
        there = self._columns(table)
        listed = ", ".join(
            f"ifnull({name}, -1)" if there.issuperset(name.split(" * ")) else "-1"
            for name in wanted
        )
        cursor = self.sql.execute(f"SELECT {listed} FROM {table} {where}")
        values = itertools.chain.from_iterable(cursor)
        width = len(wanted)
        while True:
            piece = np.fromiter(itertools.islice(values, _ROWS * width), dtype=np.int64)
            if not len(piece):
                return
            self.events += len(piece) // width
            yield piece.reshape(-1, width)

    def _usable(self, rows: _Rows) -> _Rows:
        """Without rows that end before they start (columns 0 and 1)."""
        bad = rows[:, 1] < rows[:, 0]
        if count := int(bad.sum()):
            key = "with a negative duration"
            self.left_out[key] = self.left_out.get(key, 0) + count
            return rows[~bad]
        return rows

    def _kernels(self, texts: dict[int, str]) -> dict[str, Any] | None:
        if _KERNELS not in self.tables:
            return None
        there = self._columns(_KERNELS)
        name = next((c for c in ("shortName", "demangledName", "nameId") if c in there), "")
        columns = ["start", "end", "deviceId", "globalPid", "streamId", name or "start"]
        columns += [f"{c}X * {c}Y * {c}Z" for c in ("grid", "block")]
        pieces = [self._usable(p) for p in self._select(_KERNELS, columns)]
        if not pieces:
            return None
        rows = np.concatenate(pieces)
        ids, inverse = t.distinct(rows[:, 5])
        spelled = [texts.get(int(i), f"kernel {i}") for i in ids] if name else ["kernel"] * len(ids)
        ops = [names.collective_of(text) for text in spelled]
        op = np.array([names.OP_INDEX[o] if o else t.NOT_KNOWN for o in ops], dtype=np.int8)
        op_of_row = op[inverse]
        return {
            "start_ns": rows[:, 0],
            "end_ns": rows[:, 1],
            "device": rows[:, 2],
            "pid": rows[:, 3],
            "stream": rows[:, 4],
            "name": self._name_ids(spelled)[inverse],
            "op": op_of_row,
            "kind": np.where(op_of_row >= 0, t.COLLECTIVE, t.KERNEL),
            "blocks": rows[:, 6],
            "threads": rows[:, 7],
        }

    def _copies(self) -> Iterator[dict[str, Any] | None]:
        wanted = ["start", "end", "deviceId", "globalPid", "streamId", "bytes", "copyKind"]
        for table, what in ((_COPIES, "copies"), (_FILLS, "fills")):
            if table not in self.tables:
                if table == _COPIES:
                    self._missing(table, "bytes copied are unseen", "record with --trace=cuda")
                continue
            pieces = [self._usable(p) for p in self._select(table, wanted)]
            if not pieces:
                continue
            rows = np.concatenate(pieces)
            if what == "fills":
                kind: _Rows = np.full(len(rows), t.FILL)
            else:
                kind = np.select(
                    [np.isin(rows[:, 6], _D2H), np.isin(rows[:, 6], _H2D)],
                    [t.COPY_D2H, t.COPY_H2D],
                    t.COPY_OTHER,
                )
            labels = {
                t.FILL: "memset",
                t.COPY_D2H: "memcpy DtoH",
                t.COPY_H2D: "memcpy HtoD",
                t.COPY_OTHER: "memcpy other",
            }
            ids = self._name_ids(list(labels.values()))
            name = np.select([kind == k for k in labels], list(ids), -1)
            yield {
                "start_ns": rows[:, 0],
                "end_ns": rows[:, 1],
                "device": rows[:, 2],
                "pid": rows[:, 3],
                "stream": rows[:, 4],
                "name": name,
                "op": np.full(len(rows), t.NOT_KNOWN),
                "kind": kind,
                "bytes": rows[:, 5],
            }

    def _name_ids(self, spelled: Sequence[str]) -> _Rows:
        ids = self.names
        return np.array([ids.setdefault(text, len(ids)) for text in spelled], dtype=np.int64)

    def _rank_of_devices(self, gpu: list[dict[str, Any]]) -> dict[tuple[int, int], int]:
        """Rank of each (process, device): the device's number where that tells them apart."""
        pairs = sorted(
            {
                (int(pid), int(device))
                for rows in gpu
                for pid in t.distinct(rows["pid"])[0]
                for device in t.distinct(rows["device"][rows["pid"] == pid])[0]
            },
            key=lambda pair: (pair[1], pair[0]),
        )
        devices = [device for _, device in pairs]
        if len(set(devices)) == len(devices):
            return {pair: pair[1] for pair in pairs}
        with_process = [p for p in pairs if p[0] >= 0]
        if len({p for p, _ in with_process}) == len(pairs):
            detail = (
                f"{self.path}: processes share device numbers, so ranks are the order of their pids"
            )
            self.unseen.append(
                Unseen(str(self.path), reasons.DUPLICATE, detail, "check it against the launcher")
            )
            return {pair: i for i, pair in enumerate(sorted(with_process))}
        return {pair: pair[1] for pair in pairs}

    def _gpu_table(self, rows: dict[str, Any], ranks: dict[tuple[int, int], int]) -> t.Table:
        rank = np.full(len(rows["start_ns"]), t.NOT_KNOWN)
        for (process, device), number in ranks.items():
            rank[(rows["pid"] == process) & (rows["device"] == device)] = number
        rows = {name: column for name, column in rows.items() if name not in ("pid", "device")}
        return t.table_of({**rows, "rank": rank})

    def _rank_of_processes(self, ranks: dict[tuple[int, int], int]) -> dict[int, int]:
        """Rank of each process that drives one device; CPU ranges of others belong to no rank."""
        owned: dict[int, list[int]] = {}
        for (process, _), rank in ranks.items():
            owned.setdefault(process, []).append(rank)
        shared = [process for process, numbers in owned.items() if len(numbers) > 1]
        if shared:
            detail = f"{self.path}: one process drives several GPUs, so CPU ranges have no rank"
            self.unseen.append(
                Unseen(str(self.path), reasons.UNJOINED, detail, "run one process a rank")
            )
        return {process: n[0] for process, n in owned.items() if len(n) == 1 and process >= 0}

    def _ranges(self, texts: dict[int, str], by_process: dict[int, int]) -> list[t.Table]:
        if _RANGES not in self.tables:
            self._missing(
                _RANGES,
                "no NVTX, so what the CPU was doing is unseen",
                "record with nsys --trace=cuda,nvtx",
            )
            return []
        there = self._columns(_RANGES)
        inline = "text" if "text" in there else "NULL"
        by_id = "textId" if "textId" in there else "NULL"
        event = "eventType" if "eventType" in there else str(_PUSH_POP)
        query = (
            f"SELECT start, end, globalTid, {inline}, {by_id} FROM {_RANGES} WHERE end IS NOT NULL "
            f"AND {event} IN ({_PUSH_POP}, {_START_END})"
        )
        return list(self._cpu_tables(query, t.RANGE, texts, by_process))

    def _calls(self, texts: dict[int, str], by_process: dict[int, int]) -> list[t.Table]:
        if _CALLS not in self.tables or "nameId" not in self._columns(_CALLS):
            return []
        query = (
            f"SELECT start, end, globalTid, NULL, nameId FROM {_CALLS} "
            f"WHERE end - start >= {_LONG_CALL_NS} OR end < start"
        )
        return list(self._cpu_tables(query, t.CALL, texts, by_process))

    def _cpu_tables(
        self, query: str, kind: int, texts: dict[int, str], by_process: dict[int, int]
    ) -> Iterator[t.Table]:
        cursor = self.sql.execute(query)
        ids = self.names
        text_of: Callable[[int], str] = lambda i: texts.get(i, f"range {i}")  # noqa: E731
        while rows := cursor.fetchmany(_ROWS):
            self.events += len(rows)
            spelled = [
                ids.setdefault(
                    names.plain(text if text is not None else text_of(text_id)), len(ids)
                )
                for _, _, _, text, text_id in rows
            ]
            numbers = np.array([row[:3] for row in rows], dtype=np.int64)
            numbers = np.column_stack([numbers, spelled])
            numbers = self._usable(numbers)
            thread = numbers[:, 2]
            process = thread & ~0xFF_FFFF  # the lowest 24 bits are the thread
            rank = np.full(len(numbers), t.NOT_KNOWN)
            for number, owner in by_process.items():
                rank[process == number] = owner
            yield t.table_of(
                {
                    "rank": rank,
                    "stream": thread & 0xFF_FFFF,
                    "kind": np.full(len(numbers), kind),
                    "name": numbers[:, 3],
                    "start_ns": numbers[:, 0],
                    "end_ns": numbers[:, 1],
                }
            )

    def _device(self) -> t.Device:
        if "TARGET_INFO_GPU" not in self.tables:
            return t.Device()
        wanted = ("smCount", "memoryBandwidth")
        there = self._columns("TARGET_INFO_GPU")
        if not set(wanted) <= there:
            return t.Device()
        rows = self.sql.execute(
            "SELECT name, smCount, memoryBandwidth FROM TARGET_INFO_GPU ORDER BY id LIMIT 1"
        ).fetchall()
        if not rows:
            return t.Device()
        name, count, bandwidth = rows[0]
        return t.Device(str(name or ""), int(count or 0), float(bandwidth or 0))
