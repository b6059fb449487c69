"""Page files made byte by byte, so that a test says exactly what a writer would have left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from exporters import page_layout as layout
from exporters.readers.pages import boot_id

SECOND = 1_000_000_000
RING_RECORDS = 64


def worker_info(rank: int, world_size: int, **changes: object) -> dict[str, object]:
    """The facts of a worker's page: one group of all ranks on ring 0."""
    info: dict[str, object] = {
        "engine_id": "engine-a",
        "roles": ["worker"],
        "rank": rank,
        "world_size": world_size,
        "groups": [{"ring": 0, "name": "world", "ranks": list(range(world_size))}],
    }
    return {**info, **changes}


class PageFile:
    """One page on disk, written with pwrite: no lock and no heartbeat thread unless asked."""

    def __init__(
        self,
        path: Path,
        info: dict[str, object] | None = None,
        *,
        incarnation: int = 1,
        ring_records: int = RING_RECORDS,
        start_ns: int | None = None,
        boot: str | None = None,
    ) -> None:
        self.path = path
        self.shape = layout.Layout(ring_records)
        now = time.monotonic_ns()
        header = layout.Header(
            pid=os.getpid(),
            incarnation=incarnation,
            start_ns=now if start_ns is None else start_ns,
            wall_offset_ns=time.time_ns() - now,
            boot_id=boot_id() if boot is None else boot,
            ring_records=ring_records,
            page_bytes=self.shape.page_bytes,
        )
        path.touch()
        os.truncate(path, self.shape.page_bytes)
        self.write(layout.pack_header(header), 0)
        self.mark("heartbeat", now)
        self._info_seq = 0
        self.set_info({} if info is None else info)

    def write(self, data: bytes, offset: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def set_info(self, info: dict[str, object]) -> None:
        self._info_seq += 1
        self.write(layout.pack_info(self._info_seq, info), self.shape.info_offset)

    def mark(self, name: str, value_ns: int) -> None:
        at = self.shape.marks_offset + 8 * layout.MARK_INDEX[name]
        self.write(layout.WORD.pack(value_ns), at)

    def count(self, name: str, value: int, lane: int = 0) -> None:
        word = lane * layout.LANE_WORDS + layout.COUNTER_INDEX[name]
        self.write(layout.WORD.pack(value), self.shape.lanes_offset + 8 * word)

    def head(self, number: int, ring: int = 0) -> None:
        self.write(layout.WORD.pack(number), self.shape.ring_offset(ring))

    def record_offset(self, number: int, ring: int = 0) -> int:
        slot = (number - 1) % self.shape.ring_records
        base = self.shape.ring_offset(ring) + layout.RING_HEAD_BYTES
        return base + slot * layout.RING_RECORD_BYTES

    def record(
        self,
        number: int,
        sequence: int,
        arrive_ns: int,
        depart_ns: int = 0,
        *,
        op: str = "all_gather",
        basis: str = "host",
        duration_ns: int = 0,
        ring: int = 0,
        torn: bool = False,
        move_head: bool = True,
    ) -> None:
        """One ring record; `torn` spoils its checksum."""
        fields = (
            *(number, sequence, arrive_ns, 4096),
            *(layout.OP_INDEX[op], layout.BASIS_INDEX[basis], 0),
        )
        crc = zlib.crc32(layout.RING_SIGNED.pack(*fields)) ^ int(torn)
        packed = layout.RING_RECORD.pack(*fields, crc, depart_ns, duration_ns, 0)
        self.write(packed, self.record_offset(number, ring))
        if move_head:
            self.head(number, ring)

    def operation(
        self,
        number: int,
        kind: str = "store",
        *,
        end_ns: int = SECOND,
        chunks: int = 1,
        size_bytes: int = 1000,
        expected: int = 1,
        torn: bool = False,
    ) -> None:
        fields = (number, end_ns - 1000, end_ns, chunks * 256, chunks, size_bytes, expected)
        codes = (layout.KIND_INDEX[kind], layout.TIER_INDEX["l1"])
        crc = zlib.crc32(layout.OPERATION_SIGNED.pack(*fields, *codes)) ^ int(torn)
        slot = (number - 1) % layout.OPERATION_COUNT
        packed = layout.OPERATION_RECORD.pack(*fields, *codes, crc)
        self.write(packed, self.shape.operations_offset + slot * layout.OPERATION_BYTES)

    def pending(self, slot: int, record: layout.PendingRecord) -> None:
        packed = layout.pack_pending(record)
        self.write(packed, self.shape.pending_offset + slot * layout.PENDING_BYTES)


_LOCKER = """
import fcntl, os, sys
files = [open(path, "r+b") for path in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX, 1)
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked(*paths: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the writer's lock on these pages."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LOCKER, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()
