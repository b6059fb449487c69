"""Reads a page straight from its bytes, so that the writer is tested without the reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import page_layout as layout


@dataclass(frozen=True)
class Decoded:
    header: layout.Header
    info: dict[str, Any]
    counters: dict[str, int]
    lanes_used: int
    marks: dict[str, int]
    pending: list[layout.PendingRecord]
    operations: list[layout.OperationRecord]
    rings: list[list[layout.RingRecord]]


def decode(path: Path, quiet: bool = True) -> Decoded:
    """One page; a `quiet` one has no writer at work, so that nothing in it may be torn."""
    data = path.read_bytes()
    header = layout.unpack_header(data)
    shape = layout.Layout(header.ring_records)
    info = layout.unpack_info(data[shape.info_offset : shape.lanes_offset])
    assert info is not None
    lanes = [
        struct.unpack_from(
            f"<{layout.LANE_WORDS}Q", data, shape.lanes_offset + i * layout.LANE_WORDS * 8
        )
        for i in range(layout.LANE_COUNT)
    ]
    marks = struct.unpack_from(f"<{layout.MARK_WORDS}Q", data, shape.marks_offset)
    pending = [
        layout.unpack_pending(data, shape.pending_offset + i * layout.PENDING_BYTES)
        for i in range(layout.PENDING_COUNT)
    ]
    operations = [
        layout.unpack_operation(data, shape.operations_offset + i * layout.OPERATION_BYTES)
        for i in range(layout.OPERATION_COUNT)
    ]
    rings = []
    for ring in range(layout.RING_COUNT):
        start = shape.ring_offset(ring) + layout.RING_HEAD_BYTES
        records = [
            layout.unpack_ring_record(data, start + i * layout.RING_RECORD_BYTES)
            for i in range(header.ring_records)
        ]
        assert not quiet or None not in records, "a quiet page has no torn record"
        rings.append(sorted((r for r in records if r and r.seq), key=lambda r: r.seq))
    return Decoded(
        header=header,
        info=info,
        counters={n: sum(lane[i] for lane in lanes) for i, n in enumerate(layout.COUNTERS)},
        lanes_used=sum(any(lane) for lane in lanes),
        marks={n: marks[i] for i, n in enumerate(layout.MARKS)},
        pending=[p for p in pending if p is not None and p.seq],
        operations=sorted((o for o in operations if o is not None and o.seq), key=lambda o: o.seq),
        rings=rings,
    )
