"""LMCache's storage manager and backends as a prefetch sees them: nothing they do goes unanswered.

Upstream answers nothing once a backend's GET has raised, and the scheduler waits out its timeout;
and a prefetch that nobody waits for any more goes on to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.sharding.answers import Answers

_WASTED: Final = layout.COUNTER_INDEX["load_wasted_bytes"]
_SLICE_KEYS: Final = 16
"""Between so many GETs a prefetch looks whether it is still wanted."""
_L1: Final = "LocalCPUBackend"


class GuardedManager:
    """A storage manager in everything but its backends."""

    def __init__(self, manager: Any, answers: Answers) -> None:
        self._manager = manager
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def get_active_storage_backends(
        self, *args: Any, **kwargs: Any
    ) -> Iterator[tuple[str, GuardedBackend]]:
        """As upstream's, each backend guarded."""
        for name, backend in self._manager.get_active_storage_backends(*args, **kwargs):
            yield name, GuardedBackend(name, backend, self._answers)

    def prefetch_all_done_callback(
        self, task: Any, lookup_id: str, lengths: list[int], expected: list[int], **more: Any
    ) -> None:
        """As upstream's, which frees what lies behind a gap and leaves it to be freed again."""
        try:
            tiers = task.result()
            for tier, count in enumerate(expected):
                if len(tiers[tier]) < count:
                    give_back(item for later in tiers[tier + 1 :] for _, item in later)
                    del tiers[tier + 1 :]
                    break
            self._manager.prefetch_all_done_callback(task, lookup_id, lengths, expected, **more)
        except (Exception, asyncio.CancelledError) as error:
            self._answers.answer_failed(lookup_id, error)


class GuardedBackend:
    """One backend: a fault of it is a miss, and an aborted lookup gets nothing more from it."""

    def __init__(self, name: str, backend: Any, answers: Answers) -> None:
        self._name = name
        self._backend = backend
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        """How many of the first keys are there; 0 where that cannot be told."""
        if self._answers.is_aborted(lookup_id):
            return 0
        try:
            count: int = await self._backend.batched_async_contains(lookup_id, keys, pin)
        except Exception as error:
            recorder.fault(f"sharded lookup in {self._name}", error)
            return 0
        return count

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: Sequence[Any], transfer_spec: Any = None
    ) -> list[Any]:
        """The prefix that came; nothing of an aborted lookup."""
        if self._name == _L1:  # no I/O; and what its lookup pinned must be had to be unpinned
            return await self._get(lookup_id, list(keys), transfer_spec)
        came: list[Any] = []
        for at in range(0, len(keys), _SLICE_KEYS):
            if self._answers.is_aborted(lookup_id):
                break
            asked = list(keys[at : at + _SLICE_KEYS])
            got = await self._get(lookup_id, asked, transfer_spec)
            came += got
            if len(got) < len(asked):
                break
        if self._answers.is_aborted(lookup_id):
            count_wasted(sum(item.get_size() for item in came))
            give_back(came)
            return []
        return came

    async def _get(self, lookup_id: str, keys: list[Any], transfer_spec: Any) -> list[Any]:
        try:
            got: list[Any] = await self._backend.batched_get_non_blocking(
                lookup_id, keys, transfer_spec
            )
        except Exception as error:
            recorder.fault(f"sharded prefetch from {self._name}", error)
            return []
        return got


def count_wasted(size_bytes: int) -> None:
    """Bytes that came over the network for nobody."""
    page = recorder.current()
    if page is not None and size_bytes:
        page.add(_WASTED, size_bytes)


def give_back(objects: Iterable[Any]) -> None:
    """Free objects of a prefetch, and let go of those that its lookup pinned."""
    for item in objects:
        if item.is_pinned:
            item.unpin()
        item.ref_count_down()
