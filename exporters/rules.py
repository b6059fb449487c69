"""What a detector is to the evaluator, so that neither has to import the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from exporters.snapshot import ShardQuestion, Snapshot, Verdict


class Rule(Protocol):
    """A pure function of one Snapshot; `name` is the id of its findings.

    `questions` are what it wants asked of the shards for the next picture, on suspicion only.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, snapshot: Snapshot) -> Verdict: ...

    def questions(self, snapshot: Snapshot) -> Iterable[ShardQuestion]: ...
