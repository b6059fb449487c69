"""The cost model's definitions as pure functions: s, R, B*, lambda, S, rho. One place for all.

Source: the post, "A cost model for a cache hit" and "Why synchronous loading runs away".
"""

from __future__ import annotations

from typing import Final

# Under either of these a rate is chance, and rho is not said.
LEAST_REQUESTS: Final = 30
LEAST_SECONDS: Final = 120.0


def bytes_per_token(chunk_bytes: float, chunk_tokens: float) -> float:
    """s: bytes of KV that one token takes in the cache."""
    return chunk_bytes / chunk_tokens


def break_even_bytes_per_second(token_bytes: float, prefill_tokens_per_second: float) -> float:
    """B* = s R: a hit pays off if the tier delivers more than this to one prompt. The prompt's
    length cancels."""
    return token_bytes * prefill_tokens_per_second


def chunk_count(tokens: float, chunk_tokens: float) -> int:
    """Whole chunks of a prompt: what does not fill one is not kept."""
    return int(tokens // chunk_tokens)


def shard_chunks(chunks: int, ranks: int, shards: int) -> tuple[int, ...]:
    """How many of a prompt's chunks each shard delivers: chunk c is of rank c mod W, and rank r
    keeps its chunks at shard r mod N. With more shards than ranks the others deliver none."""
    counts = [0] * shards
    for rank in range(ranks):
        counts[rank % shards] += max(0, -(-(chunks - rank) // ranks))
    return tuple(counts)


def load_seconds(load_bytes: float, bytes_per_second: float) -> float:
    """T_load of what one shard delivers."""
    return load_bytes / bytes_per_second


def recompute_seconds(tokens: float, prefill_tokens_per_second: float) -> float:
    """T_recompute = n / R."""
    return tokens / prefill_tokens_per_second


def utilisation(requests_per_second: float, service_seconds: float) -> float:
    """rho = lambda S. At 1 and beyond a queue has no steady state. `requests_per_second` are those
    offered, not those served, which never exceed what can be served."""
    return requests_per_second * service_seconds
