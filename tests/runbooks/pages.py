"""Builds page files byte by byte, so that a test says exactly what an engine would have written."""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from exporters import page_layout as layout

SECOND = 1_000_000_000
RING_RECORDS = 1024
SHAPE = layout.Layout(RING_RECORDS)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass
class Worker:
    """One rank's page to be. Times are ns of CLOCK_MONOTONIC; a collective is (arrive, depart)."""

    rank: int
    world_size: int
    engine_id: str = "engine-a"
    heartbeat_age_seconds: float = 0.0
    collectives: list[tuple[int, int]] = field(default_factory=list)
    stores: list[tuple[int, int, int, int]] = field(default_factory=list)  # end, tokens, mine, due
    pid: int = field(default_factory=os.getpid)

    def page(self) -> bytes:
        """The whole page."""
        now = time.monotonic_ns()
        data = bytearray(SHAPE.page_bytes)
        start = now - 600 * SECOND
        data[: layout.HEADER_BYTES] = layout.pack_header(
            layout.Header(
                pid=self.pid,
                incarnation=self.rank + 1,
                start_ns=start,
                wall_offset_ns=time.time_ns() - now,
                boot_id=BOOT_ID,
                ring_records=RING_RECORDS,
                page_bytes=SHAPE.page_bytes,
            )
        )
        info = layout.pack_info(1, self._facts())
        data[SHAPE.info_offset : SHAPE.info_offset + len(info)] = info
        heartbeat = now - int(self.heartbeat_age_seconds * SECOND)
        self._mark(data, "heartbeat", heartbeat)
        self._mark(data, "step_started", heartbeat)
        self._write_ring(data)
        self._write_stores(data)
        return bytes(data)

    def _facts(self) -> dict[str, object]:
        ranks = list(range(self.world_size))
        return {
            "engine_id": self.engine_id,
            "roles": ["worker"],
            "rank": self.rank,
            "world_size": self.world_size,
            "chunk_tokens": 256,
            "groups": [{"ring": 0, "name": "world", "ranks": ranks}],
        }

    def _mark(self, data: bytearray, name: str, value: int) -> None:
        layout.WORD.pack_into(data, SHAPE.marks_offset + 8 * layout.MARK_INDEX[name], value)

    def _count(self, data: bytearray, name: str, value: int) -> None:
        layout.WORD.pack_into(data, SHAPE.lanes_offset + 8 * layout.COUNTER_INDEX[name], value)

    def _write_ring(self, data: bytearray) -> None:
        base = SHAPE.ring_offset(0)
        layout.WORD.pack_into(data, base, len(self.collectives))
        op, basis = layout.OP_INDEX["all_gather"], layout.BASIS_INDEX["host"]
        for seq, (arrive, depart) in enumerate(self.collectives, 1):
            slot = (seq - 1) % RING_RECORDS
            signed = (seq, seq, arrive, 4096, op, basis, 0)
            crc = zlib.crc32(layout.RING_SIGNED.pack(*signed))
            layout.RING_RECORD.pack_into(
                data,
                base + layout.RING_HEAD_BYTES + slot * layout.RING_RECORD_BYTES,
                *signed,
                crc,
                depart,
                0,
                0,
            )
        self._count(data, "collectives", len(self.collectives))

    def _write_stores(self, data: bytearray) -> None:
        kind = layout.KIND_INDEX["store"]
        chunk_bytes = 1 << 20
        for seq, (end, tokens, chunks, expected) in enumerate(self.stores, 1):
            offset = SHAPE.operations_offset + (seq - 1) * layout.OPERATION_BYTES
            size = chunks * chunk_bytes
            fields = (seq, end - SECOND // 50, end, tokens, chunks, size, expected, kind, 0)
            crc = zlib.crc32(layout.OPERATION_SIGNED.pack(*fields))
            layout.OPERATION_RECORD.pack_into(data, offset, *fields, crc)
        totals = {
            "store_calls": len(self.stores),
            "store_tokens": sum(tokens for _, tokens, _, _ in self.stores),
            "store_chunks": sum(chunks for _, _, chunks, _ in self.stores),
            "store_bytes": sum(chunks for _, _, chunks, _ in self.stores) * chunk_bytes,
            "store_expected_chunks": sum(due for _, _, _, due in self.stores),
        }
        for name, value in totals.items():
            self._count(data, name, value)


def lockstep(
    world_size: int, late_rank: int | None = None, seconds: int = 100, late_seconds: float = 0.04
) -> list[Worker]:
    """Workers that met in 8 all-gathers a second until now; `late_rank` is late to each."""
    draw = random.Random(7)
    workers = [Worker(rank, world_size) for rank in range(world_size)]
    now = time.monotonic_ns()
    for beat in range(seconds * 8):
        entry = now - seconds * SECOND + beat * SECOND // 8
        arrivals = [entry + draw.randrange(SECOND // 2000) for _ in workers]
        if late_rank is not None:
            arrivals[late_rank] += int(late_seconds * SECOND)
        last = max(arrivals)
        for worker, arrive in zip(workers, arrivals, strict=True):
            worker.collectives.append((arrive, last + draw.randrange(1, 50_000)))
    return workers


def add_stores(workers: Sequence[Worker], only_rank: int | None, seconds: int = 100) -> None:
    """A 64-chunk prompt stored each second, by every rank its share or all of it by one."""
    now = time.monotonic_ns()
    width = len(workers)
    for second in range(seconds):
        end = now - (seconds - second) * SECOND
        for worker in workers:
            share = (64 - worker.rank + width - 1) // width
            mine = share if only_rank is None else 64 * (worker.rank == only_rank)
            worker.stores.append((end, 64 * 256, mine, share))


@contextmanager
def pages(
    folder: Path, workers: Sequence[Worker], dead_ranks: Sequence[int] = ()
) -> Iterator[Path]:
    """The folder with these pages, each locked as by a running writer, unless its rank is dead.

    Read it from another process only: a lock never shows to the process that holds it. A worker
    with `heartbeat_age_seconds` 0 beats for as long as the context lasts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    locked: list[int] = []
    beating: list[int] = []
    for worker in workers:
        path = folder / f"{worker.engine_id}-{worker.rank}{layout.SUFFIX}"
        path.write_bytes(worker.page())
        if worker.rank in dead_ranks:
            continue
        descriptor = os.open(path, os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        locked.append(descriptor)
        if worker.heartbeat_age_seconds == 0:
            beating.append(descriptor)
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(beating, stop), daemon=True)
    heart.start()
    try:
        yield folder
    finally:
        stop.set()
        heart.join()
        for descriptor in locked:
            os.close(descriptor)


def _beat(descriptors: Sequence[int], stop: threading.Event) -> None:
    offset = SHAPE.marks_offset + 8 * layout.MARK_INDEX["heartbeat"]
    while not stop.wait(0.2):
        for descriptor in descriptors:
            os.pwrite(descriptor, layout.WORD.pack(time.monotonic_ns()), offset)
