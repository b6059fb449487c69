"""The cost model's definitions as pure functions: s, R, B*, lambda, S, rho. One place for all.

Source: the post, "A cost model for a cache hit" and "Why synchronous loading runs away".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from exporters.snapshot import Engine, ModelPoint, Operation

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


@dataclass(frozen=True, slots=True)
class Rho:
    """lambda, S and rho of one engine over the last `seconds`, in which `requests` came."""

    seconds: float
    requests: int
    offered_per_second: float
    service_seconds: float
    rho: float


def rho_of(points: Sequence[ModelPoint]) -> Rho | None:
    """Over the shortest time up to the last point that has enough requests; None where there is
    none, or no prompt was done in it. S is time in steps over prompts done, loads included."""
    for point in reversed(points):
        now = points[-1]
        seconds, requests = now.at_seconds - point.at_seconds, now.admitted - point.admitted
        if seconds >= LEAST_SECONDS and requests >= LEAST_REQUESTS:
            done = now.done - point.done
            if done <= 0:
                return None
            offered, service = requests / seconds, (now.busy_seconds - point.busy_seconds) / done
            return Rho(seconds, requests, offered, service, utilisation(offered, service))
    return None


@dataclass(frozen=True, slots=True)
class LoneLoad:
    """One prompt's load while no other ran: when it ended and what the tier delivered to it."""

    end_seconds: float
    chunks: int
    bytes_per_second: float


def lone_loads(engine: Engine, others: Iterable[Engine], least_chunks: int) -> list[LoneLoad]:
    """The loads on record, of at least so many chunks, all from the shared store, that no other
    load overlapped, of this engine or the `others`. The ranks' calls for one prompt are one load:
    it begins with the first of them and ends with the last. Where several are under way, each
    waits for the others, and the tier looks slower than it is."""
    workers = list(engine.workers().items())
    tokens_of_chunk = next(
        (n for _, p in workers if isinstance(n := p.info.get("chunk_tokens"), int) and n > 0), 0
    )
    token_bytes = engine.model.token_bytes
    if not tokens_of_chunk or not token_bytes:
        return []
    ours = [(o, rank) for rank, p in workers for o in p.operations if o.kind == "load"]
    theirs = [
        (o, -1)
        for other in others
        if other is not engine
        for p in other.processes
        for o in p.operations
        if o.kind == "load"
    ]
    found = []
    for cluster in _overlapping([*ours, *theirs]):
        ranks = [rank for _, rank in cluster]
        if -1 in ranks or len(set(ranks)) < len(ranks):
            continue  # more than one prompt's
        if any(o.tier not in ("l2", "") for o, _ in cluster) or all(
            o.tier == "" for o, _ in cluster
        ):
            continue
        tokens = max(o.tokens for o, _ in cluster)
        chunks = chunk_count(tokens, tokens_of_chunk)
        end = max(o.end_seconds for o, _ in cluster)
        took = end - min(o.start_seconds for o, _ in cluster)
        if chunks >= least_chunks and took > 0:
            found.append(LoneLoad(end, chunks, tokens * token_bytes / took))
    return found


def _overlapping(
    operations: Iterable[tuple[Operation, int]],
) -> Iterable[list[tuple[Operation, int]]]:
    """Groups whose times overlap one another, in order of time."""
    cluster: list[tuple[Operation, int]] = []
    end = -math.inf
    for item in sorted(operations, key=lambda pair: pair[0].start_seconds):
        if cluster and item[0].start_seconds > end:
            yield cluster
            cluster, end = [], -math.inf
        cluster.append(item)
        end = max(end, item[0].end_seconds)
    if cluster:
        yield cluster
