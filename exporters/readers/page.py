"""Read one page file with pread: its facts, counters, tables and what is new in its rings."""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from exporters import page_layout as layout
from exporters import reasons
from exporters.readers.liveness import is_locked, liveness
from exporters.readers.rings import RETRIES, Entry, RingCursor
from exporters.snapshot import Operation, Pending, Process

NANOSECONDS = 1e9
_OPERATION_SEQS = struct.Struct(f"<Q{layout.OPERATION_BYTES - 8}x")
_PENDING_SEQS = struct.Struct(f"<Q{layout.PENDING_BYTES - 8}x")
_LANES = struct.Struct(f"<{layout.LANE_COUNT * layout.LANE_WORDS}Q")
_MARKS = struct.Struct(f"<{layout.MARK_WORDS}Q")
_GAUGES = struct.Struct(f"<{layout.GAUGE_WORDS}Q")
_MOST_RING_RECORDS = 1 << 20

MOST_RANKS = 4096  # a page is another process's word: a larger world would be listed rank by rank


def plain(text: str) -> str:
    """Text of a page or a folder as it may go to a terminal or a metric's label."""
    return "".join(c if c.isprintable() else "?" for c in text)


class Unreadable(Exception):
    """A page that cannot be read now: a reason of exporters.reasons, one line, and the mend."""

    def __init__(self, reason: str, detail: str, mend: str) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.mend = reason, detail, mend


@dataclass(frozen=True, slots=True)
class GroupSeat:
    """This process's place in one process group: which of its rings, among which ranks."""

    ring: int
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageSample:
    """One page at one tick: the process, its seats, and per ring the entries new since the last."""

    process: Process
    seats: tuple[GroupSeat, ...]
    entries: dict[int, list[Entry]]
    torn_at_rest: int


_MENDS = {
    "truncated": "something cut the file short: restart that engine process for a new page",
    "not_a_page": "move the file out of the folder of pages",
    "future_version": "use the stallscope version that the engine runs, or a later one",
    "torn": "restart that engine process for a new page",
}


class PageReader:
    """Holds one page open from tick to tick. `open` and `read` raise Unreadable."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise Unreadable(
                reasons.UNREADABLE,
                f"{path.name}: {error.strerror}",
                "let this user read the folder of pages (same uid or group as the engine)",
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise Unreadable(
                    reasons.NOT_A_PAGE, f"{path.name}: not a file", _MENDS["not_a_page"]
                )
            self.header = self._read_header(boot_id)
        except BaseException:
            os.close(self._fd)
            raise
        self._layout = layout.Layout(self.header.ring_records)
        self.info: dict[str, object] = {}
        self._info_seq = -1
        self._cursors: dict[int, RingCursor] = {}
        self._operations: dict[int, Operation] = {}
        self._torn_slots: frozenset[tuple[str, int]] = frozenset()
        self._torn = 0

    def close(self) -> None:
        os.close(self._fd)

    def file_id(self) -> tuple[int, int]:
        """Device and inode: another file under the same name is another page."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def _read_header(self, boot_id: str) -> layout.Header:
        name = self.path.name
        try:
            for attempt in range(RETRIES + 1):
                try:
                    header = layout.unpack_header(os.pread(self._fd, layout.HEADER_BYTES, 0))
                    break
                except layout.PageError as error:
                    if error.reason != "torn" or attempt == RETRIES:
                        raise
        except layout.PageError as error:
            raise Unreadable(error.reason, f"{name}: {error}", _MENDS[error.reason]) from error
        except OSError as error:
            raise Unreadable(reasons.UNREADABLE, f"{name}: {error.strerror}", "") from error
        records = header.ring_records
        if not 0 < records <= _MOST_RING_RECORDS or (
            layout.Layout(records).page_bytes != header.page_bytes
        ):
            raise Unreadable(
                reasons.NOT_A_PAGE,
                f"{name}: its header states {records} ring records in {header.page_bytes} bytes",
                _MENDS["not_a_page"],
            )
        if boot_id and header.boot_id and header.boot_id != boot_id:
            raise Unreadable(
                reasons.OTHER_BOOT,
                f"{name}: written before this host last booted",
                "remove the file: the process that wrote it is gone",
            )
        return header

    def identity(self) -> tuple[str, tuple[str, ...], int | None]:
        """Who writes this page: engine id, roles, rank. A newer page of the same replaces it."""
        roles = self.info.get("roles")
        rank = self.info.get("rank")
        return (
            str(self.info.get("engine_id", "")),
            tuple(sorted(str(r) for r in roles)) if isinstance(roles, list) else (),
            rank if isinstance(rank, int) else None,
        )

    def is_alive(self) -> bool:
        """Whether the writer still holds its lock."""
        return is_locked(self._fd)

    def refresh_info(self) -> None:
        """Read the facts again when the writer changed them; keeps the old ones while torn."""
        for _ in range(RETRIES + 1):
            head = os.pread(self._fd, 8, self._layout.info_offset)
            if len(head) == 8 and layout.WORD.unpack(head)[0] == self._info_seq:
                return
            data = os.pread(self._fd, layout.INFO_BYTES, self._layout.info_offset)
            try:
                info = layout.unpack_info(data)
            except (struct.error, ValueError):
                info = None
            if info is not None:
                self.info, self._info_seq = info, layout.WORD.unpack_from(data)[0]
                return

    def read(self, now_ns: int) -> PageSample:
        """The page now. Times of the result are seconds of CLOCK_MONOTONIC."""
        size = os.fstat(self._fd).st_size
        if size < self.header.page_bytes:
            raise self._truncated(size)
        try:
            self.refresh_info()
            locked = is_locked(self._fd)
            return self._sample(now_ns, locked)
        except struct.error as error:  # cut short between the check and a read
            raise self._truncated(os.fstat(self._fd).st_size) from error
        except OSError as error:
            raise Unreadable(
                reasons.UNREADABLE, f"{self.path.name}: {error.strerror}", _MENDS["torn"]
            ) from error

    def _truncated(self, size: int) -> Unreadable:
        return Unreadable(
            reasons.TRUNCATED,
            f"{self.path.name}: holds {size} bytes of the {self.header.page_bytes} in its header",
            _MENDS["truncated"],
        )

    def _sample(self, now_ns: int, locked: bool) -> PageSample:
        shape = self._layout
        start = shape.lanes_offset
        data = os.pread(self._fd, shape.rings_offset - start, start)
        lanes = _LANES.unpack_from(data)
        marks = _MARKS.unpack_from(data, shape.marks_offset - start)
        gauges = _GAUGES.unpack_from(data, shape.gauges_offset - start)
        heartbeat_ns = marks[layout.MARK_INDEX["heartbeat"]] or self.header.start_ns
        heartbeat_age_seconds = max(0, now_ns - heartbeat_ns) / NANOSECONDS
        seats = self._seats()
        entries = {seat.ring: self._cursor(seat.ring).read() for seat in seats}
        pending, torn_pending = self._pending(data, shape.pending_offset - start, now_ns)
        torn_operations = self._follow_operations(data, shape.operations_offset - start)
        torn_slots = frozenset(torn_pending | torn_operations)
        self._torn += len(torn_slots - self._torn_slots)
        torn_twice = len(torn_slots & self._torn_slots)
        self._torn_slots = torn_slots
        engine_id, roles, rank = self.identity()
        world_size = self.info.get("world_size")
        process = Process(
            page=plain(self.path.name),
            pid=self.header.pid,
            engine_id=plain(engine_id),
            roles=roles,
            rank=rank,
            world_size=min(max(world_size, 0), MOST_RANKS) if isinstance(world_size, int) else 0,
            incarnation=self.header.incarnation,
            liveness=liveness(locked, heartbeat_age_seconds),
            heartbeat_age_seconds=heartbeat_age_seconds,
            started_seconds=self.header.start_ns / NANOSECONDS,
            counters={
                name: sum(lanes[i :: layout.LANE_WORDS]) for i, name in enumerate(layout.COUNTERS)
            },
            marks={name: marks[i] / NANOSECONDS for i, name in enumerate(layout.MARKS) if marks[i]},
            info=self.info,
            pending=pending,
            operations=tuple(self._operations.values()),
            gauges={name: gauges[i] for i, name in enumerate(layout.GAUGES)},
            torn_records=self._torn + sum(c.torn for c in self._cursors.values()),
        )
        return PageSample(
            process=process,
            seats=seats,
            entries=entries,
            torn_at_rest=torn_twice + sum(c.torn_at_rest() for c in self._cursors.values()),
        )

    def _cursor(self, ring: int) -> RingCursor:
        if ring not in self._cursors:
            self._cursors[ring] = RingCursor(
                self._fd, self._layout.ring_offset(ring), self.header.ring_records
            )
        return self._cursors[ring]

    def _seats(self) -> tuple[GroupSeat, ...]:
        """The groups that the facts name, less what is malformed or of one rank."""
        listed = self.info.get("groups")
        seats: dict[int, GroupSeat] = {}
        for item in listed if isinstance(listed, list) else ():
            if not isinstance(item, dict):
                continue
            ring, ranks = item.get("ring"), item.get("ranks")
            if (
                isinstance(ring, int)
                and 0 <= ring < layout.RING_COUNT
                and isinstance(ranks, list)
                and all(isinstance(rank, int) for rank in ranks)
                and len(set(ranks)) == len(ranks) > 1
            ):
                seats[ring] = GroupSeat(ring, str(item.get("name", "")), tuple(ranks))
        return tuple(seats.values())

    def _pending(
        self, data: bytes, start: int, now_ns: int
    ) -> tuple[tuple[Pending, ...], set[tuple[str, int]]]:
        """The table's taken slots, oldest first, and the slots that are torn."""
        table = memoryview(data)[start : start + layout.PENDING_COUNT * layout.PENDING_BYTES]
        found = []
        torn: set[tuple[str, int]] = set()
        for slot, (seq,) in enumerate(_PENDING_SEQS.iter_unpack(table)):
            if not seq:
                continue
            at = slot * layout.PENDING_BYTES
            record = layout.unpack_pending(bytes(table[at : at + layout.PENDING_BYTES]), 0)
            for _ in range(RETRIES):
                if record is not None:
                    break
                record = layout.unpack_pending(
                    os.pread(self._fd, layout.PENDING_BYTES, self._layout.pending_offset + at), 0
                )
            if record is None:
                torn.add(("pending", slot))
            elif record.seq:
                found.append(record)
        found.sort(key=lambda record: record.submit_ns)
        pending = tuple(
            Pending(
                id=record.id,
                kind=record.kind,
                age_seconds=max(0, now_ns - record.submit_ns) / NANOSECONDS,
                timeout_seconds=record.timeout_ns / NANOSECONDS,
                key_count=record.key_count,
                first_key=record.first_key,
                connection_ids=record.connection_ids,
            )
            for record in found
        )
        return pending, torn

    def _follow_operations(self, data: bytes, start: int) -> set[tuple[str, int]]:
        """Add the operations not seen before, keep the newest OPERATION_COUNT; the torn slots."""
        count = layout.OPERATION_COUNT
        table = memoryview(data)[start : start + count * layout.OPERATION_BYTES]
        known = self._operations
        numbers = [seq for (seq,) in _OPERATION_SEQS.iter_unpack(table)]
        newest = max(numbers)
        fresh: dict[int, Operation] = {}
        torn: set[tuple[str, int]] = set()
        for slot, number in enumerate(numbers):
            if not number or number in known:
                continue
            at = slot * layout.OPERATION_BYTES
            record = layout.unpack_operation(bytes(table[at : at + layout.OPERATION_BYTES]), 0)
            for _ in range(RETRIES):
                if record is not None:
                    break
                record = layout.unpack_operation(
                    os.pread(self._fd, layout.OPERATION_BYTES, self._layout.operations_offset + at),
                    0,
                )
            if record is None:
                torn.add(("operation", slot))
            elif record.seq and record.kind in ("store", "load", "lookup"):
                fresh[record.seq] = _operation(record)
        for number in sorted(fresh):
            known[number] = fresh[number]
        for number in [n for n in known if n <= newest - count]:
            del known[number]
        return torn


def _operation(record: layout.OperationRecord) -> Operation:
    return Operation(
        kind=record.kind,  # type: ignore[arg-type]  # checked by the caller
        start_seconds=record.start_ns / NANOSECONDS,
        end_seconds=record.end_ns / NANOSECONDS,
        tokens=record.tokens,
        chunks=record.chunks,
        bytes=record.bytes,
        expected_chunks=record.expected_chunks,
        tier=record.tier,
    )
