"""Puts what follows from a fault under it: one cause and its symptoms, not a list of findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporters.snapshot import Finding

# What each finding brings about by itself. A cause of a cause stands above both.
FOLLOWS: Final[Mapping[str, frozenset[str]]] = {
    cause: frozenset(symptoms)
    for cause, symptoms in {
        "refcount-error": ("engine-dead",),
        "engine-dead": ("rank-silent", "progress-stall", "lookup-timeouts"),
        "shard-down": (
            *("stuck-lookup", "wedged-connection", "evicted-before-load", "load-mismatch"),
            *("rank-silent", "straggler-rank", "lookup-timeouts", "async-give-up"),
            *("orphaned-chunks", "degraded-engine", "progress-stall", "queue-not-prefill"),
        ),
        "key-namespace-split": ("orphaned-chunks",),
        "cold-shard": ("orphaned-chunks", "evicted-before-load"),
        "shard-saturated": (
            *("lookup-timeouts", "async-give-up", "straggler-rank", "rho-rising"),
            *("orphaned-chunks", "progress-stall", "queue-not-prefill"),
        ),
        "evicted-before-load": (
            *("wedged-connection", "orphaned-chunks", "lookup-timeouts", "rank-silent"),
        ),
        "wedged-connection": (
            *("rank-silent", "lookup-timeouts", "straggler-rank", "progress-stall"),
        ),
        "stuck-lookup": ("rank-silent", "lookup-timeouts", "straggler-rank", "progress-stall"),
        "collective-mismatch": ("rank-silent", "progress-stall"),
        "wrong-collective-group": ("load-mismatch", "rank-silent", "progress-stall"),
        "rank-silent": (
            *("straggler-rank", "lookup-timeouts", "progress-stall", "queue-not-prefill"),
        ),
        "cpu-throttled": ("straggler-rank",),
        "store-skew": ("straggler-rank", "queue-not-prefill"),
        "straggler-rank": ("queue-not-prefill",),
        "async-give-up": ("lookup-timeouts", "queue-not-prefill"),
        "handoff-blocked": ("queue-not-prefill", "progress-stall"),
        "rho-rising": ("queue-not-prefill",),
    }.items()
}
# A rank that stands away from a collective may wait for anything; one whose heart has stopped is
# nobody's symptom, except of an engine that is dead as a whole.
_OWN_FAULT: Final = "heartbeat_age_seconds"


@dataclass(frozen=True, slots=True)
class Merged:
    """One cause with the findings that follow from it, in the order in which they came."""

    cause: Finding
    symptoms: tuple[Finding, ...]


def merged(findings: Sequence[Finding]) -> tuple[Merged, ...]:
    """The findings, each once: those that another one explains under the first that does, all
    others as causes, in their order."""
    above: dict[int, int] = {}
    for index, finding in enumerate(findings):
        candidates = [
            other
            for other, cause in enumerate(findings)
            if other != index and _explains(cause, finding)
        ]
        if candidates:  # the closest: of the same rank, then of the same shard, then the first
            above[index] = max(
                candidates, key=lambda other: (_closeness(findings[other], finding), -other)
            )
    roots = {index: _root(index, above) for index in range(len(findings))}
    return tuple(
        Merged(
            finding,
            tuple(f for i, f in enumerate(findings) if i != index and roots[i] == index),
        )
        for index, finding in enumerate(findings)
        if roots[index] == index
    )


def _root(index: int, above: Mapping[int, int]) -> int:
    seen = {index}
    while (cause := above.get(index)) is not None and cause not in seen:
        index = cause
        seen.add(index)
    return index


def _explains(cause: Finding, finding: Finding) -> bool:
    if finding.id not in FOLLOWS.get(cause.id, frozenset()):
        return False
    if cause.engine_id != finding.engine_id:
        return False
    if cause.id == "engine-dead":
        return True
    if finding.id != "engine-dead" and any(e.name == _OWN_FAULT for e in finding.evidence):
        return False
    return _agree(cause.rank, finding.rank) and _agree(cause.shard, finding.shard)


def _closeness(cause: Finding, finding: Finding) -> int:
    same_rank = cause.rank is not None and cause.rank == finding.rank
    same_shard = cause.shard is not None and cause.shard == finding.shard
    return 2 * same_rank + same_shard


def _agree(one: int | str | None, other: int | str | None) -> bool:
    """The same place, or a finding that is of no place in particular."""
    return one is None or other is None or one == other
