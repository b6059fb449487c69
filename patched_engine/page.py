"""The page writer: one memory-mapped file per engine process, written with plain stores.

Reserving and naming follow `exporters.page_layout`: the file is made under a temporary name, its
bytes are reserved whole (a store to a sparse page on a full tmpfs is a SIGBUS that no `except`
sees), then it is renamed. The process holds a record lock on it for as long as it lives, so that a
reader can tell alive, frozen and dead. After that no system call is made on the engine's path.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

from exporters import page_layout as layout
from patched_engine.truncation_guard import guard_mapping, reinstall_guard

HEARTBEAT_INTERVAL_SECONDS = 1.0
LOCK_BYTES = 1
# Counts of threads without a lane, until the next heartbeat: more would be lost, never waited for.
MOST_OVERFLOW = 1_000_000

_own_pages: set[str] = set()  # names of this process's open pages

_monotonic_ns = time.monotonic_ns
_crc32 = zlib.crc32
_pack_signed = layout.RING_SIGNED.pack
_pack_record_into = layout.RING_RECORD.pack_into
_pack_operation = layout.OPERATION_SIGNED.pack
_pack_operation_into = layout.OPERATION_RECORD.pack_into


class PageUnavailableError(OSError):
    """The folder cannot hold a page: missing, read-only or full. The engine runs on without."""


class _LaneClaim:
    """One thread's hold on a lane, given back when the thread's locals die."""

    __slots__ = ("_free", "_index")

    def __init__(self, free: deque[int], index: int) -> None:
        self._free = free
        self._index = index

    def __del__(self) -> None:
        self._free.append(self._index)


class Ring:
    """One process group's ring of recent collectives; its writers share a counter."""

    __slots__ = ("_base", "_count", "_head", "_map", "_mask", "_words")

    def __init__(self, mapping: mmap.mmap, words: memoryview, base: int, records: int) -> None:
        self._map = mapping
        self._words = words
        self._base = base + layout.RING_HEAD_BYTES
        self._head = base // 8
        self._mask = records - 1
        self._count = itertools.count(1)  # next() is atomic under the interpreter lock

    def begin(self, op: int, basis: int, sequence: int, size_bytes: int) -> int:
        """Write the arrival at one collective; returns the record's offset for `end`."""
        seq = next(self._count)
        offset = self._base + ((seq - 1) & self._mask) * layout.RING_RECORD_BYTES
        now = _monotonic_ns()
        _pack_record_into(
            self._map,
            offset,
            seq,
            sequence,
            now,
            size_bytes,
            op,
            basis,
            0,
            _crc32(_pack_signed(seq, sequence, now, size_bytes, op, basis, 0)),
            0,
            0,
            0,
        )
        self._words[self._head] = seq
        return offset

    def end(self, offset: int) -> None:
        """Write the departure: one aligned store."""
        self._words[(offset + layout.RING_DEPART_OFFSET) >> 3] = _monotonic_ns()

    def end_with_duration(self, offset: int, sequence: int, duration_ns: int) -> None:
        """Write a device-measured duration, unless the record was reused meanwhile."""
        if self._words[(offset + 8) >> 3] == sequence:
            self._words[(offset + layout.RING_DURATION_OFFSET) >> 3] = duration_ns
            self._words[(offset + layout.RING_DEPART_OFFSET) >> 3] = _monotonic_ns()


class Page:
    """The open page of this process. Every method is cheap, and safe from any thread.

    `Page.create` raises PageUnavailableError; nothing else here raises on the engine's path once
    the page stands (callers still guard it: telemetry fails open).
    """

    def __init__(
        self, path: Path, mapping: mmap.mmap, file_descriptor: int, header: layout.Header
    ) -> None:
        self.path = path
        self.incarnation = header.incarnation
        self._map = mapping
        self._fd = file_descriptor
        self._layout = layout.Layout(header.ring_records)
        self._words = memoryview(mapping).cast("Q")
        self._lanes_word = self._layout.lanes_offset // 8
        self._marks_word = self._layout.marks_offset // 8
        self._gauges_word = self._layout.gauges_offset // 8
        self._free_lanes: deque[int] = deque(range(layout.SHARED_LANE))
        self._local = threading.local()
        self._overflow: deque[tuple[int, int]] = deque(maxlen=MOST_OVERFLOW)
        self._info: dict[str, object] = {}
        self.timeouts: dict[str, float] = {}  # of the info section, for the pending table
        self._info_seq = 0
        self._info_lock = threading.Lock()
        self._pending_seq = itertools.count(1)
        self._free_pending: deque[int] = deque(range(layout.PENDING_COUNT))
        self._operation_count = itertools.count(1)
        self._rings_used = itertools.count()
        self._stop = threading.Event()
        self._pollers: list[Callable[[], None]] = []
        self.truncated = False
        self._guard = guard_mapping(mapping)
        self.mark(layout.MARK_INDEX["heartbeat"])
        self._heartbeat = threading.Thread(
            target=self._beat, name="stallscope-heartbeat", daemon=True
        )

    @classmethod
    def create(
        cls, folder: Path, info: dict[str, object], ring_records: int = layout.RING_RECORDS
    ) -> Page:
        """Reserve, lock and name a page in `folder`; `ring_records` is a power of two.

        Raises PageUnavailableError when the folder is missing, read-only or full.
        """
        if ring_records & (ring_records - 1):
            raise ValueError(f"ring_records must be a power of two, not {ring_records}")
        shape = layout.Layout(ring_records)
        header = layout.Header(
            pid=os.getpid(),
            incarnation=secrets.randbits(63),
            start_ns=time.monotonic_ns(),
            wall_offset_ns=time.time_ns() - time.monotonic_ns(),
            boot_id=_boot_id(),
            ring_records=ring_records,
            page_bytes=shape.page_bytes,
        )
        name = f"{header.pid}-{header.incarnation:016x}"
        temporary = folder / f".{name}.tmp"
        final = folder / f"{name}{layout.SUFFIX}"
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PageUnavailableError(error.errno, f"no page in {folder}: {error}") from error
        try:
            os.posix_fallocate(fd, 0, shape.page_bytes)
            mapping = mmap.mmap(
                fd,
                shape.page_bytes,
                flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0),
            )
            mapping[: layout.HEADER_BYTES] = layout.pack_header(header)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCK_BYTES)
            page = cls(final, mapping, fd, header)
            page.set_info(info)
            _own_pages.add(final.name)
            os.rename(temporary, final)
            page._heartbeat.start()
        except BaseException as error:
            os.close(fd)
            _own_pages.discard(final.name)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if not isinstance(error, OSError):
                raise
            raise PageUnavailableError(error.errno, f"no page in {folder}: {error}") from error
        return page

    # Counters and marks ---------------------------------------------------------------------

    def add(self, counter: int, amount: int = 1) -> None:
        """Add to one counter (an index of `page_layout.COUNTERS`) in this thread's lane."""
        try:
            self._local.lane[counter] += amount
        except AttributeError:
            self._add_first(counter, amount)

    def mark(self, mark: int) -> int:
        """Stamp one mark (an index of `page_layout.MARKS`) with now; returns that time in ns."""
        now = _monotonic_ns()
        self._words[self._marks_word + mark] = now
        return now

    def gauge(self, gauge: int, value: int) -> None:
        """Set one gauge (an index of `page_layout.GAUGES`); not negative."""
        self._words[self._gauges_word + gauge] = value

    def _add_first(self, counter: int, amount: int) -> None:
        """A thread's first count claims a lane; where none is free the heartbeat counts for it.

        A lock would do too, but a thread may wait long for one while others hold the interpreter.
        """
        try:
            index = self._free_lanes.popleft()
        except IndexError:
            self._overflow.append((counter, amount))
            return
        self._local.claim = _LaneClaim(self._free_lanes, index)
        self._local.lane = self._lane(index)
        self._local.lane[counter] += amount

    def _lane(self, index: int) -> memoryview:
        start = self._lanes_word + index * layout.LANE_WORDS
        return self._words[start : start + layout.LANE_WORDS]

    # Facts ----------------------------------------------------------------------------------

    def set_info(self, facts: dict[str, object]) -> None:
        """Merge facts into the info section. Rare, and locked; a reader sees old or new, whole."""
        with self._info_lock:
            merged = {**self._info, **facts}
            self._info_seq += 1
            packed = layout.pack_info(self._info_seq, merged)
            self._info = merged
            timeouts = merged.get("timeouts")
            self.timeouts = timeouts if isinstance(timeouts, dict) else {}
            start = self._layout.info_offset
            self._map[start : start + len(packed)] = packed

    def info(self) -> dict[str, object]:
        """The facts as last written."""
        with self._info_lock:
            return dict(self._info)

    # Records --------------------------------------------------------------------------------

    def new_ring(self) -> tuple[int, Ring] | None:
        """The next free ring and its number, or None when all are taken."""
        index = next(self._rings_used)
        if index >= layout.RING_COUNT:
            return None
        base = self._layout.ring_offset(index)
        return index, Ring(self._map, self._words, base, self._layout.ring_records)

    def operation(
        self,
        kind: int,
        tier: int,
        start_ns: int,
        end_ns: int,
        tokens: int,
        chunks: int,
        size_bytes: int,
        expected_chunks: int,
    ) -> None:
        """Record one finished store, load or lookup in the operation ring."""
        seq = next(self._operation_count)
        offset = (
            self._layout.operations_offset
            + ((seq - 1) % layout.OPERATION_COUNT) * layout.OPERATION_BYTES
        )
        fields = (seq, start_ns, end_ns, tokens, chunks, size_bytes, expected_chunks, kind, tier)
        _pack_operation_into(self._map, offset, *fields, _crc32(_pack_operation(*fields)))

    def submit(
        self,
        kind: str,
        timeout_ns: int,
        key_count: int,
        first_key: str,
        connection_ids: tuple[int, ...] = (),
    ) -> int:
        """Enter one operation into the pending table; returns its slot, or -1 when it is full."""
        seq = next(self._pending_seq)
        packed = layout.pack_pending(
            layout.PendingRecord(
                seq, seq, kind, _monotonic_ns(), timeout_ns, key_count, first_key, connection_ids
            )
        )
        try:
            slot = self._free_pending.popleft()  # last: what cannot be packed takes no slot
        except IndexError:
            self.add(layout.COUNTER_INDEX["pending_drops"])
            return -1
        offset = self._layout.pending_offset + slot * layout.PENDING_BYTES
        self._map[offset : offset + len(packed)] = packed
        return slot

    def complete(self, slot: int) -> None:
        """Take a pending entry out again; -1 is a submit that found the table full."""
        if slot < 0:
            return
        offset = self._layout.pending_offset + slot * layout.PENDING_BYTES
        self._words[offset >> 3] = 0
        self._free_pending.append(slot)

    # Life -----------------------------------------------------------------------------------

    def add_poller(self, poll: Callable[[], None]) -> None:
        """Run `poll` on the heartbeat thread each second (device events, file checks)."""
        self._pollers.append(poll)

    def _beat(self) -> None:
        heartbeat = layout.MARK_INDEX["heartbeat"]
        while not self._stop.is_set():
            self.mark(heartbeat)
            self._drain_overflow()
            reinstall_guard()
            try:
                self.truncated = os.fstat(self._fd).st_size < self._layout.page_bytes
            except OSError:
                self.truncated = True
            for poll in tuple(self._pollers):
                with contextlib.suppress(Exception):  # a poller's fault must not stop the heart
                    poll()
            self._stop.wait(HEARTBEAT_INTERVAL_SECONDS)

    def _drain_overflow(self) -> None:
        """Add what threads without a lane counted; the shared lane has this one writer."""
        lane = self._lane(layout.SHARED_LANE)
        for _ in range(len(self._overflow)):
            counter, amount = self._overflow.popleft()
            lane[counter] += amount

    def close(self, unlink: bool = True) -> None:
        """Stop the heartbeat, drop the lock and, on a clean end, the file."""
        self._stop.set()
        if threading.current_thread() is not self._heartbeat:
            self._heartbeat.join(timeout=2 * HEARTBEAT_INTERVAL_SECONDS)
        self._drain_overflow()
        _own_pages.discard(self.path.name)
        if unlink:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def forget_after_fork(self) -> None:
        """In a forked child: let go of the parent's page without touching its lock or file."""
        self._stop.set()
        with contextlib.suppress(OSError):
            os.close(self._fd)


def sweep_dead_pages(folder: Path, facts: dict[str, object]) -> int:
    """Remove dead pages of the same engine, roles and rank: their place is taken. Returns how many.

    Never opens a page of this process: closing any descriptor of it would drop its lock.
    """
    identity = [facts.get(key) for key in ("engine_id", "roles", "rank")]
    removed = 0
    for path in folder.glob(f"*{layout.SUFFIX}"):
        if path.name in _own_pages:
            continue
        with contextlib.suppress(OSError, ValueError, struct.error):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if _is_locked(fd):
                    continue
                info = layout.unpack_info(os.pread(fd, layout.INFO_BYTES, layout.HEADER_BYTES))
            finally:
                os.close(fd)
            if info and [info.get(key) for key in ("engine_id", "roles", "rank")] == identity:
                os.unlink(path)
                removed += 1
    return removed


def _is_locked(fd: int) -> bool:
    """Whether another process holds the writer's lock (F_GETLK: asks, never takes)."""
    query = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, LOCK_BYTES, 0)
    answer = fcntl.fcntl(fd, fcntl.F_GETLK, query)
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
