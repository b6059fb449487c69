"""The page: the fixed layout of the file that each engine process owns, for writer and reader.

Standard library only, since the writer lives inside the engine. Everything is little-endian and
aligned to 8 bytes. A record is valid when its CRC-32 matches, so a reader that copied a half
written record sees it, whatever the order in which the processor made the stores visible.

    header | info (JSON) | lanes | marks | gauges | pending | operations | rings

Counters live in one lane per writer thread and are summed by the reader. Times are nanoseconds of
CLOCK_MONOTONIC. A record that is reused carries a new sequence number (`seq`, from 1; 0 is empty).
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass

from exporters.page_fields import *

MAGIC = b"STALLPG1"
VERSION = 2
SUFFIX = ".page"

HEADER_BYTES = 4096
INFO_BYTES = 16384
PENDING_COUNT = 128
PENDING_BYTES = 192
OPERATION_COUNT = 1024
OPERATION_BYTES = 64
RING_COUNT = 8
RING_RECORDS = 4096
RING_RECORD_BYTES = 64
RING_HEAD_BYTES = 64
FIRST_KEY_BYTES = 64
CONNECTION_IDS = 8

# magic, version, header bytes, page bytes, pid, incarnation, start ns, wall offset ns, boot id,
# ring records, then the CRC of all that.
_HEADER = struct.Struct("<8sII QQ Q qq 40s Q")
_CRC = struct.Struct("<I")
_INFO_HEAD = struct.Struct("<QII")  # seq, length, crc of seq + json
WORD = struct.Struct("<Q")

# seq, group sequence, arrive ns, bytes, op, basis, zero | crc | depart ns | duration ns, zero.
RING_RECORD = struct.Struct("<QQQQHBBI QQQ")
RING_SIGNED = struct.Struct("<QQQQHBB")
RING_DEPART_OFFSET = 40
RING_DURATION_OFFSET = 48
# seq, start ns, end ns, tokens, chunks, bytes, expected chunks, kind, tier | crc
OPERATION_RECORD = struct.Struct("<QQQQQQQHHI")
OPERATION_SIGNED = struct.Struct("<QQQQQQQHH")
# seq, id, submit ns, timeout ns, key count, kind, connection count, key length, zero | crc
PENDING_HEAD = struct.Struct("<QQQQQHHHHI4x")
PENDING_SIGNED = struct.Struct("<QQQQQHHHH")
PENDING_KEY_OFFSET = 56
PENDING_CONNECTIONS_OFFSET = PENDING_KEY_OFFSET + FIRST_KEY_BYTES
_CONNECTIONS = struct.Struct(f"<{CONNECTION_IDS}Q")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each section starts, for a page with `ring_records` records a ring."""

    ring_records: int = RING_RECORDS

    @property
    def info_offset(self) -> int:
        return HEADER_BYTES

    @property
    def lanes_offset(self) -> int:
        return self.info_offset + INFO_BYTES

    @property
    def marks_offset(self) -> int:
        return self.lanes_offset + LANE_COUNT * LANE_WORDS * 8

    @property
    def gauges_offset(self) -> int:
        return self.marks_offset + MARK_WORDS * 8

    @property
    def pending_offset(self) -> int:
        return self.gauges_offset + GAUGE_WORDS * 8

    @property
    def operations_offset(self) -> int:
        return self.pending_offset + PENDING_COUNT * PENDING_BYTES

    @property
    def rings_offset(self) -> int:
        return self.operations_offset + OPERATION_COUNT * OPERATION_BYTES

    @property
    def ring_bytes(self) -> int:
        return RING_HEAD_BYTES + self.ring_records * RING_RECORD_BYTES

    @property
    def page_bytes(self) -> int:
        return self.rings_offset + RING_COUNT * self.ring_bytes

    def ring_offset(self, ring: int) -> int:
        """Offset of ring `ring`: a head word (records begun so far), then the records."""
        return self.rings_offset + ring * self.ring_bytes


def lookup_number(lookup_id: str) -> int:
    """64 bits of a lookup's id, never 0: equal on every rank and in every process."""
    digest = hashlib.blake2b(lookup_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class PageError(ValueError):
    """A page that cannot be read; `reason` is "truncated", "not_a_page", "future_version"
    or "torn"."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """The immutable head of a page, written before the file gets its name."""

    pid: int
    incarnation: int
    start_ns: int
    wall_offset_ns: int
    boot_id: str
    ring_records: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class RingRecord:
    """One rank's entry of one collective. `depart_ns` 0: still open (or not yet known).

    `duration_ns` is set for the basis "cuda_event", where arrival and departure on the device are
    known only as their difference.
    """

    seq: int
    sequence: int
    op: str
    basis: str
    arrive_ns: int
    depart_ns: int
    duration_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """One finished store, load or lookup. A lookup's `bytes` are `lookup_number` of its id, so that
    the answers of an engine's ranks to one question are found again; 0 where it has none."""

    seq: int
    kind: str
    tier: str
    start_ns: int
    end_ns: int
    tokens: int
    chunks: int
    bytes: int
    expected_chunks: int


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """One operation submitted and not completed. `timeout_ns` 0: none is configured."""

    seq: int
    id: int
    kind: str
    submit_ns: int
    timeout_ns: int
    key_count: int
    first_key: str
    connection_ids: tuple[int, ...]


def pack_header(header: Header) -> bytes:
    """The first HEADER_BYTES bytes of a page."""
    body = _HEADER.pack(
        MAGIC,
        VERSION,
        HEADER_BYTES,
        header.page_bytes,
        header.pid,
        header.incarnation,
        header.start_ns,
        header.wall_offset_ns,
        header.boot_id.encode()[:40],
        header.ring_records,
    )
    return (body + _CRC.pack(zlib.crc32(body))).ljust(HEADER_BYTES, b"\0")


def unpack_header(data: bytes) -> Header:
    """Read a header. Raises PageError: truncated, not a page, a future version, torn."""
    if len(data) < len(MAGIC):
        raise PageError("truncated", f"holds {len(data)} bytes, not even a page's magic")
    if data[: len(MAGIC)] != MAGIC:
        raise PageError("not_a_page", "does not begin with a page's magic")
    if len(data) < _HEADER.size + 4:
        raise PageError("truncated", f"holds {len(data)} bytes, less than a header")
    fields = _HEADER.unpack_from(data)
    version = fields[1]
    if version != VERSION:
        raise PageError("future_version", f"has layout version {version}; this reads {VERSION}")
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        raise PageError("torn", "has a header whose checksum does not match")
    return Header(
        pid=fields[4],
        incarnation=fields[5],
        start_ns=fields[6],
        wall_offset_ns=fields[7],
        boot_id=fields[8].rstrip(b"\0").decode("ascii", "replace"),
        ring_records=fields[9],
        page_bytes=fields[3],
    )


def pack_info(seq: int, info: dict[str, object]) -> bytes:
    """The info section. Raises ValueError when the JSON does not fit."""
    text = json.dumps(info, separators=(",", ":"), sort_keys=True).encode()
    if len(text) > INFO_BYTES - _INFO_HEAD.size:
        raise ValueError(f"info is {len(text)} bytes; a page holds {INFO_BYTES - _INFO_HEAD.size}")
    return _INFO_HEAD.pack(seq, len(text), zlib.crc32(WORD.pack(seq) + text)) + text


def unpack_info(data: bytes) -> dict[str, object] | None:
    """The info section's facts, or None where it is torn."""
    seq, length, crc = _INFO_HEAD.unpack_from(data)
    text = data[_INFO_HEAD.size : _INFO_HEAD.size + length]
    if len(text) != length or zlib.crc32(WORD.pack(seq) + text) != crc:
        return None
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):  # whole by its checksum, and still not an object of ours
        return None
    return info if isinstance(info, dict) else None


def unpack_ring_record(data: bytes, offset: int) -> RingRecord | None:
    """One ring record, or None where it is torn; an empty record has seq 0."""
    seq, sequence, arrive, size, op, basis, _, crc, depart, duration, _ = RING_RECORD.unpack_from(
        data, offset
    )
    if seq == 0:
        return RingRecord(0, 0, OPS[0], BASES[0], 0, 0, 0, 0)
    if zlib.crc32(data[offset : offset + RING_SIGNED.size]) != crc:
        return None
    return RingRecord(
        seq=seq,
        sequence=sequence,
        op=OPS[op] if op < len(OPS) else OPS[0],
        basis=BASES[basis] if basis < len(BASES) else BASES[0],
        arrive_ns=arrive,
        # A departure older than the arrival belongs to the record that stood here before.
        depart_ns=depart if depart >= arrive else 0,
        duration_ns=duration,
        bytes=size,
    )


def unpack_operation(data: bytes, offset: int) -> OperationRecord | None:
    """One operation record, or None where it is torn; an empty record has seq 0."""
    seq, start, end, tokens, chunks, size, expected, kind, tier, crc = OPERATION_RECORD.unpack_from(
        data, offset
    )
    if seq and zlib.crc32(data[offset : offset + OPERATION_SIGNED.size]) != crc:
        return None
    return OperationRecord(
        seq=seq,
        kind=KINDS[kind] if kind < len(KINDS) else KINDS[0],
        tier=TIERS[tier] if tier < len(TIERS) else "",
        start_ns=start,
        end_ns=end,
        tokens=tokens,
        chunks=chunks,
        bytes=size,
        expected_chunks=expected,
    )


def pack_pending(record: PendingRecord) -> bytes:
    """One pending entry; the key is cut to FIRST_KEY_BYTES, connections to CONNECTION_IDS."""
    key = record.first_key.encode("utf-8", "replace")[:FIRST_KEY_BYTES]
    connections = record.connection_ids[:CONNECTION_IDS]
    head = PENDING_SIGNED.pack(
        record.seq,
        record.id,
        record.submit_ns,
        record.timeout_ns,
        record.key_count,
        KIND_INDEX.get(record.kind, 0),
        len(connections),
        len(key),
        0,
    )
    tail = key.ljust(FIRST_KEY_BYTES, b"\0") + _CONNECTIONS.pack(
        *connections, *([0] * (CONNECTION_IDS - len(connections)))
    )
    return head + struct.pack("<I4x", zlib.crc32(head + tail)) + tail


def unpack_pending(data: bytes, offset: int) -> PendingRecord | None:
    """One pending entry, or None where it is torn; a free one has seq 0."""
    fields = PENDING_HEAD.unpack_from(data, offset)
    seq, ident, submit, timeout, key_count, kind, connection_count, key_length, _, crc = fields
    if seq == 0:
        return PendingRecord(0, 0, KINDS[0], 0, 0, 0, "", ())
    tail = data[offset + PENDING_KEY_OFFSET : offset + PENDING_BYTES - 8]
    if zlib.crc32(data[offset : offset + PENDING_SIGNED.size] + tail) != crc:
        return None
    connections = _CONNECTIONS.unpack_from(data, offset + PENDING_CONNECTIONS_OFFSET)
    return PendingRecord(
        seq=seq,
        id=ident,
        kind=KINDS[kind] if kind < len(KINDS) else KINDS[0],
        submit_ns=submit,
        timeout_ns=timeout,
        key_count=key_count,
        first_key=tail[:key_length].decode("utf-8", "replace"),
        connection_ids=connections[:connection_count],
    )
