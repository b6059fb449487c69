"""What ranks tell each other about a load: 64 bytes of fixed layout, so no pickle is needed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

_LAYOUT: Final = struct.Struct("<8sqqqqQqq")
_MAGIC: Final = b"sscpload"
RECORD_BYTES: Final = 64
assert _LAYOUT.size == RECORD_BYTES

OK: Final = 0
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One rank's view of one load. Chunks are indexes in the prompt.

    `reach` is the first chunk from `first_chunk` on that this rank is in the way of: the first of
    its own that it does not have, or `end_chunk`. `phase` counts the exchanges of one load.
    """

    sequence: int
    phase: int
    first_chunk: int
    end_chunk: int
    fingerprint: int
    reach: int
    status: int

    def pack(self) -> bytes:
        """Exactly RECORD_BYTES bytes."""
        sequence, phase, first, end, fingerprint, reach, status = astuple(self)
        return _LAYOUT.pack(_MAGIC, sequence, phase, first, end, fingerprint, reach, status)


def unpack(data: bytes) -> Record | None:
    """The record, or None for bytes that are none."""
    if len(data) != RECORD_BYTES:
        return None
    magic, sequence, phase, first, end, fingerprint, reach, status = _LAYOUT.unpack(data)
    if magic != _MAGIC:
        return None
    return Record(sequence, phase, first, end, fingerprint, reach, status)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks conclude from the same records: the first chunk that is not loaded.

    `mismatch` says, if anything, what they do not agree about; then nothing is loaded.
    """

    end_chunk: int
    mismatch: str = ""


def agree(replies: Sequence[bytes], mine: Record) -> Verdict:
    """The same on every rank, whatever the records say; never raises."""
    records = [unpack(reply) for reply in replies]
    nothing = mine.first_chunk
    known = [record for record in records if record is not None]
    if len(known) < len(records) or not known:
        rank = records.index(None) if None in records else 0
        return Verdict(nothing, f"rank {rank} sent no record")
    first = known[0]
    for name in ("sequence", "phase", "first_chunk", "end_chunk", "fingerprint"):
        for rank, record in enumerate(known):
            if getattr(record, name) != getattr(first, name):
                return Verdict(nothing, f"rank {rank} has another {name} than rank 0")
    if any(not first.first_chunk <= record.reach <= first.end_chunk for record in known):
        return Verdict(nothing, "a rank reaches beyond the load")
    return Verdict(min(record.reach for record in known))


def fingerprint(names: Iterable[str]) -> int:
    """64 bits over the keys of a load, in order: equal where ranks mean the same chunks."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        digest.update(name.encode())
        digest.update(b"\0")
    return int.from_bytes(digest.digest(), "little")
