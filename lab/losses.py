"""The lab's own truth of the stock client's fault: which completions each rank's client dropped.

LMCache's client drops a completion that it drains before the submitting thread has registered who
waits for it (upstream #5547). That is the one moment at which it takes an entry out of its table
and there is none, so the table itself counts them. Nothing that a detector sees reads this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PendingTable(dict[int, Any]):
    """Stands for the client's table of who waits. Entering it costs the submitting thread nothing
    more than before, so the fault comes as often as it would."""

    def __init__(self, entries: dict[int, Any], lost: Callable[[], None]) -> None:
        super().__init__(entries)
        self.exists_calls = 0
        self._lost = lost

    def pop(self, key: int, *default: Any) -> Any:
        entry = super().pop(key, *default)
        if entry is None:
            self.exists_calls += 1  # the one call that waits in another thread, so it was this one
            self._lost()
        elif entry[1] == "batch_exists":
            self.exists_calls += 1
        return entry


def native_client_of(engine: Any) -> Any:
    """The Python side of this engine's native client; None where the rank has none: it has no
    storage, or the patched engine's client."""
    connection = _connection_of(engine)
    return connection._connector.client if hasattr(connection, "_connector") else None


def patched_calls_of(engine: Any) -> Any:
    """The calls of the patched engine's client; None on a stock engine, or without storage."""
    return getattr(_connection_of(engine), "calls", None)


def _connection_of(engine: Any) -> Any:
    manager = engine.storage_manager
    backend = manager.storage_backends.get("RemoteBackend") if manager is not None else None
    return backend.connection if backend is not None else None


class Losses:
    """Tells of each loss as it happens. `is_forced` is set while an incident provokes one."""

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self.count = 0
        self.is_forced = False
        self._tell = tell

    def watch(self, client: Any) -> None:
        client._pending = PendingTable(client._pending, self._lost)

    def _lost(self) -> None:
        self.count += 1
        self._tell(self.is_forced)
