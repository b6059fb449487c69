"""Which rank owns which chunk, and how far a prompt is there: the one answer for both paths.

Chunk c belongs to rank c mod W (LMCache #5545). A rank answers a lookup with the start of the first
of its own chunks that is absent, and with the end of the prompt if none is. The smallest answer of
all ranks is the longest prefix whose chunks are all there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

SCHEMA: Final = "chunk-mod-w/1"
"""Changes with the meaning of who owns what: pods that differ must not share shards."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a prompt: its index in the prompt, its tokens [start, end), its key."""

    index: int
    start: int
    end: int
    key: Any


def owner(chunk_index: int, world_size: int) -> int:
    """The rank that stores and loads a chunk."""
    return chunk_index % world_size


def first_owned(rank: int, world_size: int, from_chunk: int) -> int:
    """The first chunk index of a rank that is not below `from_chunk`."""
    return from_chunk + (rank - from_chunk) % world_size


def owned(chunks: Sequence[Chunk], rank: int, world_size: int) -> list[Chunk]:
    """A rank's chunks, in order."""
    return [chunk for chunk in chunks if owner(chunk.index, world_size) == rank]


def answers(chunks: Sequence[Chunk], rank: int, world_size: int) -> list[int]:
    """What a rank answers, in tokens, when its first 0, 1, 2, ... chunks are there.

    `chunks` is the whole prompt. One entry more than the rank has chunks: the start of its k-th
    chunk, then the end of the prompt. It is what LMCache calls cum_chunk_lengths (#5553), so that
    its asynchronous path computes the same prefix as the synchronous one.
    """
    mine = owned(chunks, rank, world_size)
    return [chunk.start for chunk in mine] + [chunks[-1].end if chunks else 0]
