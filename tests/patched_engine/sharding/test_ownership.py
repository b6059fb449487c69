"""Who owns what, and how far a rank answers, against the definition done by brute force."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from patched_engine.sharding.ownership import Chunk, answers, first_owned, owned, owner

SIZE = 256


def prompt(count: int, tail: int = SIZE) -> list[Chunk]:
    """Chunks of a prompt whose last has `tail` tokens; a chunk's key is its index."""
    ends = [SIZE * (index + 1) for index in range(count)]
    if ends:
        ends[-1] += tail - SIZE
    return [Chunk(index, SIZE * index, end, index) for index, end in enumerate(ends)]


def longest_prefix(chunks: list[Chunk], present: set[int]) -> int:
    """Tokens before the first chunk that is absent."""
    for chunk in chunks:
        if chunk.index not in present:
            return chunk.start
    return chunks[-1].end if chunks else 0


def found(chunks: list[Chunk], present: set[int], rank: int, width: int) -> int:
    """How many of a rank's first chunks are there, by the definition."""
    count = 0
    for chunk in chunks[rank::width]:
        if chunk.index not in present:
            break
        count += 1
    return count


@given(st.integers(1, 16), st.integers(0, 64), st.integers(1, SIZE))
def test_each_chunk_has_one_owner_and_each_rank_answers_for_its_own(width, count, tail):
    chunks = prompt(count, tail)
    shares = [owned(chunks, rank, width) for rank in range(width)]
    assert sorted(c.index for share in shares for c in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for rank, share in enumerate(shares):
        assert all(owner(c.index, width) == rank for c in share)
        reached = answers(chunks, rank, width)
        assert len(reached) == len(share) + 1 and reached == sorted(reached)
        for first in range(count):
            after = [c for c in range(first, first + width) if owner(c, width) == rank]
            assert [first_owned(rank, width, first)] == after


def test_the_smallest_answer_is_the_longest_prefix_that_is_there():
    drawn = random.Random(5)
    for _ in range(3_000):
        width, count = drawn.randint(1, 16), int(1000 ** drawn.random()) - drawn.randint(0, 1)
        chunks = prompt(count, drawn.randint(1, SIZE))
        absent = {drawn.randrange(count) for _ in range(drawn.randint(0, 3))} if count else set()
        present = {c.index for c in chunks} - absent
        said = [
            answers(chunks, rank, width)[found(chunks, present, rank, width)]
            for rank in range(width)
        ]
        assert min(said) == longest_prefix(chunks, present), (width, count, absent)
