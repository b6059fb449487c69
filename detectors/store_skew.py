"""store-skew: one rank stores more than its share of the chunks, and the others wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from detectors import thresholds as t
from detectors.rule import (
    Answer,
    Rule,
    joined_share,
    onset,
    severity_of_loss,
    whole_group,
    window_of,
)
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Operation, Process, Snapshot

NAME = "store-skew"


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank stored of everything stored, against what it should have."""

    rank: int
    stored_bytes: int
    stored: float
    expected: float

    @property
    def ratio(self) -> float:
        return self.stored / self.expected


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Design, Definitions: the share of bytes over the expected share > 1.5, >= 16 W chunks, and
    a wait charged to that rank above 5% of the wall."""
    now_seconds = snapshot.now_seconds
    workers = engine.workers()
    size = engine.world_size or len(workers)
    if len(workers) < max(size, 2):
        return Answer(
            abstained=f"pages of {len(workers)} of {size} ranks are there",
            reason=reasons.MISSING_RANK,
        )
    group = whole_group(engine)
    if group is None or group.unseen_reason or set(group.ranks) != set(workers):
        reason = (group.unseen_reason if group is not None else "") or reasons.TOO_FEW
        return Answer(abstained=f"the ranks' waits are unseen: {reason}", reason=reason)
    end = int(now_seconds)
    window = window_of(group.seconds, end - t.SKEW_WINDOW_SECONDS, end, len(group.ranks))
    if window.wall_seconds < t.SKEW_MIN_WALL_SECONDS:
        return Answer(
            abstained=f"saw {window.wall_seconds} s of collectives, "
            f"needs {t.SKEW_MIN_WALL_SECONDS} s",
            reason=reasons.TOO_FEW,
        )
    if window.most_lost_share() <= t.LOST_WALL_SHARE:
        return Answer()  # nobody waits, whoever stores
    begin = now_seconds - t.SKEW_WINDOW_SECONDS
    stores = {rank: _stores(worker, begin) for rank, worker in workers.items()}
    chunks = sum(op.chunks for ops in stores.values() for op in ops)
    if chunks < t.SKEW_CHUNKS_PER_RANK * size:
        return Answer(
            abstained=f"{chunks} chunks stored in {t.SKEW_WINDOW_SECONDS} s, "
            f"needs {t.SKEW_CHUNKS_PER_RANK * size}",
            reason=reasons.TOO_FEW,
        )
    worst = max(shares(stores), key=lambda share: share.ratio)
    lost = window.lost_share(group.ranks.index(worst.rank))
    if worst.ratio <= t.SKEW_RATIO or lost <= t.LOST_WALL_SHARE:
        return Answer()
    return Answer(
        (
            Finding(
                id=NAME,
                severity=severity_of_loss(lost),
                summary=f"rank {worst.rank} stores {worst.stored:.0%} of the KV bytes where "
                f"{worst.expected:.0%} is its share; the others lose {lost:.0%} of their time "
                "waiting for it",
                rank=worst.rank,
                engine_id=engine.engine_id,
                since_seconds=max(0.0, now_seconds - _began(workers, worst)),
                evidence=(
                    Evidence(
                        "store_ratio",
                        worst.ratio,
                        t.SKEW_RATIO,
                        "ratio",
                        f"{worst.stored_bytes / 1e6:.1f} MB, {worst.stored:.0%} of all bytes "
                        f"stored, is {worst.ratio:.1f} times its share of {worst.expected:.0%} "
                        f"(limit {t.SKEW_RATIO})",
                    ),
                    Evidence(
                        "chunks",
                        chunks,
                        t.SKEW_CHUNKS_PER_RANK * size,
                        "chunks",
                        f"{chunks} chunks stored in the last {t.SKEW_WINDOW_SECONDS} s "
                        f"(at least {t.SKEW_CHUNKS_PER_RANK * size})",
                    ),
                    Evidence(
                        "lost_wall_share",
                        lost,
                        t.LOST_WALL_SHARE,
                        "ratio",
                        f"each of the others waited {lost * window.wall_seconds:.2f} s for it in "
                        f"{window.wall_seconds} s ({lost:.1%} of the wall, "
                        f"limit {t.LOST_WALL_SHARE:.0%})",
                    ),
                ),
                confidence=round(0.95 * joined_share(group), 2),
            ),
        )
    )


def shares(stores: dict[int, list[Operation]]) -> list[Share]:
    """Each rank's share of the bytes and its expected one.

    The expected share is that of c mod W, but never below an even one: where every rank keeps its
    own copy, short prompts would give the high ranks no share at all.
    """
    stored = {rank: sum(op.bytes for op in ops) for rank, ops in stores.items()}
    expected = {rank: sum(op.expected_chunks for op in ops) for rank, ops in stores.items()}
    all_bytes = sum(stored.values())
    all_expected = sum(expected.values())
    even = 1 / len(stores)
    # A rank that recorded no store at all would leave its part of the expectation out.
    known = all_expected > 0 and all(stores.values())
    return [
        Share(
            rank=rank,
            stored_bytes=stored[rank],
            stored=stored[rank] / all_bytes if all_bytes else 0.0,
            expected=max(even, expected[rank] / all_expected) if known else even,
        )
        for rank in sorted(stores)
    ]


def _stores(worker: Process, begin_seconds: float) -> list[Operation]:
    return [
        op for op in worker.operations if op.kind == "store" and op.end_seconds >= begin_seconds
    ]


def _began(workers: dict[int, Process], worst: Share) -> float:
    """When the skew began, in seconds, as far back as the operations on record go."""
    stores = sorted(
        (
            (op.start_seconds, op.bytes, rank)
            for rank, worker in workers.items()
            for op in worker.operations
            if op.kind == "store"
        ),
    )
    limit = min(1.0, t.SKEW_RATIO * worst.expected)
    scores = [size * ((1.0 if rank == worst.rank else 0.0) - limit) for _, size, rank in stores]
    began = onset(scores)
    return stores[began][0] if began < len(stores) else stores[-1][0]


RULE = Rule(NAME, ("pages",), judge)
