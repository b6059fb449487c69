"""What a detector is to the evaluator, so that neither has to import the other."""

from __future__ import annotations

from typing import Protocol

from exporters.snapshot import Snapshot, Verdict


class Rule(Protocol):
    """A pure function of one Snapshot; `name` is the id of its findings."""

    @property
    def name(self) -> str: ...

    def __call__(self, snapshot: Snapshot) -> Verdict: ...
