"""LMCache's storage manager and backends as a prefetch sees them: nothing they do goes unanswered.

Upstream answers nothing once a backend's GET has raised, and the scheduler waits out its timeout;
and a prefetch that nobody waits for any more goes on to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        came: list[Any] = []
        size = len(keys) if self._name == _L1 else _SLICE_KEYS
        for at in range(0, len(keys), max(1, size)):
            if self._answers.is_aborted(lookup_id):
                break
            asked = list(keys[at : at + size])
            try:
                got = await self._backend.batched_get_non_blocking(lookup_id, asked, transfer_spec)
            except Exception as error:
                recorder.fault(f"sharded prefetch from {self._name}", error)
                break
            came += got
            if len(got) < len(asked):
                break
        if self._answers.is_aborted(lookup_id) and self._name != _L1:
            _waste(came)
            return []
        return came


def _waste(objects: list[Any]) -> None:
    """Free what came for nobody, and count it."""
    page = recorder.current()
    if page is not None:
        page.add(_WASTED, sum(item.get_size() for item in objects))
    for item in objects:
        item.ref_count_down()
