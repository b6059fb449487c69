"""Follow one ring of a page: each record once when it is new, and again until it is closed."""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple

from exporters import page_layout as layout

RETRIES = 3
# A torn record this far behind the newest is not one that is being written just now.
AT_REST_RECORDS = 64
_RECORD = layout.RING_RECORD_BYTES
_SIGNED = layout.RING_SIGNED.size
_NONE_BASIS = layout.BASIS_INDEX["none"]


class Entry(NamedTuple):
    """One rank's part in one collective; times in ns, `depart_ns` 0 while it is open.

    `op` and `basis` are indexes into page_layout.OPS and BASES: this is built for every record.
    """

    sequence: int
    op: int
    basis: int
    arrive_ns: int
    depart_ns: int
    duration_ns: int


class RingCursor:
    """Reads what is new in one ring with pread; work is proportional to the new records."""

    def __init__(self, file_descriptor: int, offset: int, records: int) -> None:
        self._fd = file_descriptor
        self._head_offset = offset
        self._offset = offset + layout.RING_HEAD_BYTES
        self._records = records
        self._next = 0  # ring number of the first record never looked at; 0 before the first read
        self._unfinished: dict[int, int] = {}  # ring number -> reads in a row that found it torn
        self._head = 0
        self.torn = 0
        self.lost = 0
        self.began_whole = False  # whether the first read still found the ring's first record

    def read(self) -> list[Entry]:
        """New entries, and the present state of those that were open, torn or not yet written.

        Raises OSError when the file cannot be read.
        """
        head = layout.WORD.unpack(os.pread(self._fd, 8, self._head_offset))[0]
        oldest = max(1, head - self._records + 1)
        self._head = head
        if self._next == 0:
            self._next = oldest
            self.began_whole = oldest == 1
        elif self._next < oldest:
            self.lost += oldest - self._next
            self._next = oldest
        entries: list[Entry] = []
        again = [number for number in self._unfinished if number >= oldest]
        self.lost += len(self._unfinished) - len(again)
        self._unfinished = {number: self._unfinished[number] for number in again}
        for number in again:
            self._take(number, self._read_one(number), 0, entries)
        self._read_new(head, entries)
        return entries

    def torn_at_rest(self) -> int:
        """Torn records that no writer is in the middle of: damaged, and not just seen too early."""
        return sum(
            times > 1 or (times == 1 and number <= self._head - AT_REST_RECORDS)
            for number, times in self._unfinished.items()
        )

    def _read_new(self, head: int, entries: list[Entry]) -> None:
        while self._next <= head:
            slot = (self._next - 1) % self._records
            count = min(head - self._next + 1, self._records - slot)
            data = os.pread(self._fd, count * _RECORD, self._offset + slot * _RECORD)
            self._read_block(self._next, data, entries)
            self._next += count

    def _read_block(self, first: int, data: bytes, entries: list[Entry]) -> None:
        """The fast path of a sound, closed record; anything else goes through `_take`."""
        view = memoryview(data)
        crc32 = zlib.crc32
        offset = 0
        number = first
        whole = len(data) - len(data) % _RECORD
        for (
            seq,
            sequence,
            arrive,
            _,
            op,
            basis,
            _,
            crc,
            depart,
            duration,
            _,
        ) in layout.RING_RECORD.iter_unpack(view[:whole]):
            if seq == number and depart >= arrive and crc32(view[offset : offset + _SIGNED]) == crc:
                entries.append(Entry(sequence, op, basis, arrive, depart, duration))
            else:
                self._take(number, data, offset, entries)
            offset += _RECORD
            number += 1

    def _read_one(self, number: int) -> bytes:
        slot = (number - 1) % self._records
        return os.pread(self._fd, _RECORD, self._offset + slot * _RECORD)

    def _take(self, number: int, data: bytes, offset: int, entries: list[Entry]) -> None:
        """Sort one record: closed, open, torn (read again now and next time) or overwritten."""
        record = layout.unpack_ring_record(data, offset)
        for _ in range(RETRIES):
            if record is not None:
                break
            record = layout.unpack_ring_record(self._read_one(number), 0)
        if record is None:
            times = self._unfinished.get(number, 0)
            self.torn += times == 0
            self._unfinished[number] = times + 1
            return
        if record.seq != number:
            if record.seq > number:  # overwritten while we read
                self.lost += 1
                self._unfinished.pop(number, None)
            else:  # its number is taken, its bytes are not there yet
                self._unfinished[number] = 0
            return
        op, basis = layout.OP_INDEX[record.op], layout.BASIS_INDEX[record.basis]
        closed = record.depart_ns > 0 or basis == _NONE_BASIS
        if closed:
            self._unfinished.pop(number, None)
        else:
            self._unfinished[number] = 0
        entries.append(
            Entry(
                record.sequence, op, basis, record.arrive_ns, record.depart_ns, record.duration_ns
            )
        )
