"""The KV that a token range must hold: a cheap, exact function of the tokens before and in it.

Every process derives the same bytes, so a load is compared on each rank without keeping a copy of
what was stored. A chunk's content is a window into one block of random bytes; the window's place
comes from a hash over all tokens up to the chunk's end, as a real KV depends on its whole prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch

from lab.settings import BLOCK_TOKENS, CHUNK_TOKENS, LAYERS

_WINDOWS = 1 << 20
POISON_BYTE = 0xA5
# One object for each id, and few blocks kept: a process must not grow with the prompts it has seen.
_IDS = tuple(range(50_000))


@lru_cache(maxsize=512)
def block_tokens(block_id: int) -> tuple[int, ...]:
    """The 512 token ids of one block: fixed by its id, as a shared block is a shared text."""
    state = (block_id * 0x9E3779B97F4A7C15 + 0x1234567) & 0xFFFFFFFFFFFFFFFF
    first, stride = state % 49_999, (state >> 20) % 49_991 | 1
    return tuple(_IDS[(first + i * stride) % len(_IDS)] for i in range(BLOCK_TOKENS))


def prompt_tokens(block_ids: Sequence[int], length_tokens: int) -> list[int]:
    """The token ids of a prompt made of blocks; the last block may be cut."""
    tokens: list[int] = []
    for block_id in block_ids:
        tokens.extend(block_tokens(block_id))
    return tokens[:length_tokens]


def chunk_digests(tokens: Sequence[int]) -> list[int]:
    """One number a chunk (the last may be short), each over all tokens up to the chunk's end."""
    digests: list[int] = []
    running = hashlib.blake2b(digest_size=8)
    for start in range(0, len(tokens), CHUNK_TOKENS):
        running.update(repr(tokens[start : start + CHUNK_TOKENS]).encode())
        digests.append(int.from_bytes(running.digest(), "little"))
    return digests


class ExpectedKV:
    """The expected content of any chunk as int16 [layers, 256, head_size]."""

    def __init__(self, head_size: int) -> None:
        self.shape = (LAYERS, CHUNK_TOKENS, head_size)
        self._elements = LAYERS * CHUNK_TOKENS * head_size
        generator = torch.Generator().manual_seed(20)
        self._random = torch.randint(
            -(1 << 15),
            1 << 15,
            (self._elements + _WINDOWS,),
            dtype=torch.int16,
            generator=generator,
        )

    def chunk(self, digest: int) -> torch.Tensor:
        """A view, never a copy: read it, do not write to it."""
        start = digest % _WINDOWS
        return self._random[start : start + self._elements].view(self.shape)


class PagedKV:
    """One rank's "device" memory: bfloat16 [layers, slots, head_size] in pages of one chunk."""

    def __init__(self, pages: int, head_size: int) -> None:
        self.pages = pages
        self.tensor = torch.empty((LAYERS, pages * CHUNK_TOKENS, head_size), dtype=torch.bfloat16)
        self._words = self.tensor.view(torch.int16)
        self._bytes = self.tensor.view(torch.uint8)
        self._bytes.fill_(POISON_BYTE)

    def write(self, page: int, expected: torch.Tensor, first: int, last: int) -> None:
        """What the model computes for tokens [first, last) of the chunk on this page."""
        start = page * CHUNK_TOKENS
        self._words[:, start + first : start + last] = expected[:, first:last]

    def holds(self, page: int, expected: torch.Tensor) -> bool:
        start = page * CHUNK_TOKENS
        held = self._words[:, start : start + CHUNK_TOKENS]
        return bool((held.numpy() == expected.numpy()).all())  # a third of torch.equal's time

    def poison(self, pages: Sequence[int]) -> None:
        """Overwrite freed pages: a load that never arrived must not find the right bytes there."""
        for page in pages:
            start = page * CHUNK_TOKENS
            self._bytes[:, start : start + CHUNK_TOKENS] = POISON_BYTE


def slot_mapping(pages: Sequence[int], length_tokens: int) -> torch.Tensor:
    """The slot of each token, as the engine hands it to LMCache: int64 [length_tokens]."""
    starts = torch.tensor(pages, dtype=torch.int64) * CHUNK_TOKENS
    slots = starts[:, None] + torch.arange(CHUNK_TOKENS)
    return slots.flatten()[:length_tokens]
