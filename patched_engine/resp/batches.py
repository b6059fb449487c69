"""Turns what callers give into a batch, or says in one line what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.engine import Batch, Kind

Key = str | bytes
BytesLike = bytes | bytearray | memoryview

MAX_KEY_BYTES: Final = 65536
_MAX_VALUE_BYTES: Final = 512 << 20  # the server's own limit (proto-max-bulk-len)


def make_batch(
    kind: Kind,
    keys: Sequence[Key],
    buffers: Sequence[BytesLike],
    deadlines: Deadlines,
    connections: int,
) -> Batch:
    """Raises ValueError."""
    if isinstance(keys, (str, bytes)):
        raise ValueError("keys is one string: give a list of keys")
    coded = [key.encode() if isinstance(key, str) else key for key in keys]
    for key in coded:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes: give 1 to {MAX_KEY_BYTES}")
    if kind > Kind.SET:
        return Batch(kind, coded, [], deadlines, connections)
    if len(coded) != len(buffers):
        raise ValueError(f"{len(coded)} keys and {len(buffers)} buffers: give one buffer a key")
    return Batch(kind, coded, [_view(kind, buffer) for buffer in buffers], deadlines, connections)


def _view(kind: Kind, buffer: BytesLike) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("a buffer is not contiguous: give one that is")
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if kind is Kind.GET and view.readonly:
        raise ValueError("a buffer of GET is read-only: give a bytearray or a writable memoryview")
    if len(view) > _MAX_VALUE_BYTES:
        raise ValueError(f"a buffer of {len(view)} bytes: a value has at most {_MAX_VALUE_BYTES}")
    return view
