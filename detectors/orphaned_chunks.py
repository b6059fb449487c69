"""orphaned-chunks: one rank's shard lost chunks; what the others hold beyond them is useless."""

from __future__ import annotations

from collections.abc import Mapping

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from detectors.shard_set import is_sharded
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Snapshot

NAME = "orphaned-chunks"
# Answers one chunk apart are how a prefix ends (exporters.prefix).
_LEAST_LOST_CHUNKS = 2


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Of the last 10 lookups that all ranks answered (within a minute), one rank alone cut the
    prefix in 30%, and what was lost by it is worth the work."""
    size = engine.world_size
    if size < 2 or not is_sharded(engine):
        return Answer()
    since = snapshot.now_seconds - t.ORPHAN_WINDOW_SECONDS
    asked = _answers(engine, since)
    whole = [answers for answers in asked.values() if len(answers) == size][-t.ORPHAN_LOOKUPS :]
    if len(whole) < t.ORPHAN_LOOKUPS:
        return Answer(
            abstained=f"{len(whole)} lookups were answered by all ranks in the last minute, needs "
            f"{t.ORPHAN_LOOKUPS}",
            reason=reasons.TOO_FEW,
        )
    chunk_tokens = _chunk_tokens(engine)
    if chunk_tokens is None:
        return Answer(
            abstained="no page of a worker says how many tokens a chunk has",
            reason=reasons.NOT_HOOKED,
        )
    lost: dict[int, list[int]] = {}
    for answers in whole:
        rank, second = sorted(answers, key=answers.__getitem__)[:2]
        chunks = (answers[second] - answers[rank]) // chunk_tokens
        if chunks >= _LEAST_LOST_CHUNKS:
            lost.setdefault(rank, []).append(chunks)
    if not lost:
        return Answer()
    rank = max(lost, key=lambda r: sum(lost[r]))
    is_often = len(lost[rank]) >= t.ORPHAN_SHARE * len(whole)
    if not is_often or sum(lost[rank]) < t.ORPHAN_CHUNKS_PER_RANK * size:
        return Answer()
    return Answer((_finding(engine, rank, lost[rank], len(whole)),))


def _answers(engine: Engine, since_seconds: float) -> Mapping[int, dict[int, int]]:
    """Lookup -> rank -> tokens found, oldest first."""
    found: dict[int, dict[int, int]] = {}
    for rank, process in engine.workers().items():
        for operation in sorted(process.operations, key=lambda o: o.end_seconds):
            is_known = operation.kind == "lookup" and operation.bytes
            if is_known and operation.end_seconds >= since_seconds:
                found.setdefault(operation.bytes, {})[rank] = operation.tokens
    return found


def _chunk_tokens(engine: Engine) -> int | None:
    sizes = [p.info.get("chunk_tokens") for p in engine.workers().values()]
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _finding(engine: Engine, rank: int, chunks: list[int], lookups: int) -> Finding:
    share = len(chunks) / lookups
    shard = engine.workers()[rank].shard
    where = f" ({shard})" if shard else ""
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"rank {rank}'s shard{where} lacks chunks that all other ranks still hold: it cuts "
        f"the prefix in {share:.0%} of the lookups",
        rank=rank,
        shard=shard or None,
        engine_id=engine.engine_id,
        evidence=(
            Evidence(
                "limited_share",
                share,
                t.ORPHAN_SHARE,
                "ratio",
                f"{len(chunks)} of {lookups} newest lookups end at a chunk that rank "
                f"{rank} alone lacks (limit {t.ORPHAN_SHARE:.0%})",
            ),
            Evidence(
                "lost_chunks",
                float(sum(chunks)),
                float(t.ORPHAN_CHUNKS_PER_RANK * engine.world_size),
                "chunks",
                f"{sum(chunks)} chunks of the others are behind it, and nobody can use them",
            ),
        ),
        confidence=0.9,
    )


RULE = Rule(NAME, ("pages",), judge)
