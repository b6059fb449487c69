"""Joins the ranks' answers to each lookup: which rank's shard cut the prefix that all can use.

With chunks owned in turn (owner = chunk mod W) rank r answers with the start of its first absent
chunk, and the prefix is the least answer. Where a cached prefix simply ends, the answers follow
each other chunk by chunk; only a rank whose answer lies two chunks or more before all others' has
lost what they still hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from exporters.snapshot import Operation, PrefixLimit, Process

# Lookups that some ranks have answered and others not: an aborted one is never answered by all.
MOST_OPEN: Final = 4096
# Answers one chunk apart are how a prefix ends.
LEAST_LOST_CHUNKS: Final = 2


class PrefixJoiner:
    """Follows one engine's workers from tick to tick."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Operation] = {}  # of each page's life, seen so far
        self._open: OrderedDict[int, dict[int, int]] = OrderedDict()  # number -> rank -> tokens
        self._limits: dict[int, PrefixLimit] = {}

    def update(self, workers: Mapping[int, Process]) -> tuple[PrefixLimit, ...]:
        """What each rank has cut in all, with the lookups that ended since the last call."""
        for rank, process in workers.items():
            self._limits.setdefault(rank, PrefixLimit(rank, 0, 0))
            chunk_tokens = process.info.get("chunk_tokens")
            if not isinstance(chunk_tokens, int) or chunk_tokens <= 0:
                continue
            for operation in self._fresh(process):
                self._answer(rank, operation, process.world_size, chunk_tokens)
        return tuple(self._limits[rank] for rank in sorted(self._limits))

    def _fresh(self, process: Process) -> Iterable[Operation]:
        key = (process.page, process.incarnation)
        last = self._last.get(key)
        found = []
        for operation in reversed(process.operations):  # the reader keeps the same objects
            if operation is last:
                break
            if operation.kind == "lookup" and operation.bytes:
                found.append(operation)
        if process.operations:
            self._last[key] = process.operations[-1]
        return reversed(found)

    def _answer(self, rank: int, answer: Operation, world_size: int, chunk_tokens: int) -> None:
        answers = self._open.setdefault(answer.bytes, {})
        if rank in answers:  # asked again under the same id
            answers.clear()
        answers[rank] = answer.tokens
        if len(answers) < max(world_size, 2):
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return
        del self._open[answer.bytes]
        limiting, second = sorted(answers, key=answers.__getitem__)[:2]
        lost = (answers[second] - answers[limiting]) // chunk_tokens
        if lost >= LEAST_LOST_CHUNKS:
            before = self._limits.setdefault(limiting, PrefixLimit(limiting, 0, 0))
            self._limits[limiting] = PrefixLimit(
                limiting, before.limited_lookups + 1, before.lost_chunks + lost
            )
