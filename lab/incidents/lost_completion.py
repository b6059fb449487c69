"""lost-completion: the stock client drains an answer before anyone is registered to wait for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from lab.incidents.base import Incident
from lab.incidents.native import is_due
from lab.losses import patched_calls_of
from lab.settings import LOOKUP_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from lab.worker import Worker

DELAY_SECONDS: Final = 0.002


class LateReturn:
    """The real native client; one EXISTS returns to its caller 2 ms late, and is answered."""

    def __init__(self, native: Any, incident: LostCompletion, worker: Worker) -> None:
        self._native = native
        self._incident = incident
        self._worker = worker
        self._armed = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def submit_batch_exists(self, keys: list[str]) -> Any:
        if not self._armed or not is_due(self._incident, self._worker):
            return self._native.submit_batch_exists(keys)
        losses = self._worker.losses
        before, losses.is_forced = losses.count, True
        future_id = self._native.submit_batch_exists(keys)
        time.sleep(DELAY_SECONDS)
        losses.is_forced = False
        if losses.count > before:  # else the answer took longer than 2 ms: once more
            self._armed = False
            self._worker.tell_begun()
        return future_id


class LateSubmit:
    """The patched client's engine; one EXISTS is submitted 2 ms before its caller knows of it."""

    def __init__(self, engine: Any, incident: LostCompletion, worker: Worker) -> None:
        self._engine = engine
        self._incident = incident
        self._worker = worker
        self._armed = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, batch: Any, lane: int) -> Any:
        ticket = self._engine.submit(batch, lane)
        if self._armed and batch.kind.name == "EXISTS" and is_due(self._incident, self._worker):
            self._armed = False
            time.sleep(DELAY_SECONDS)
            self._worker.tell_begun()
        return ticket


class LostCompletion(Incident):
    """Upstream #5547. Unforced it takes some hundred to some ten thousand calls."""

    name = "lost-completion"
    summary = "on one rank, drawn from the seed, the client loses the answer to one EXISTS"
    finding = "stuck-lookup"
    cause = "lost-completion"
    can_start_late = True
    # LMCache's asynchronous lookups submit and drain in one thread: nothing can come between.
    goes_with_async = False
    earliest_seconds = 2.0
    decidable_seconds = 1.5 * LOOKUP_TIMEOUT_SECONDS  # the design's definition of stuck-lookup

    def install(self, worker: Worker) -> None:
        client = worker.native_client
        if worker.rank != self.rank(worker.settings):
            return
        if client is not None:
            client._client = LateReturn(client._client, self, worker)
        elif (calls := patched_calls_of(worker.engine)) is not None:
            calls.client._engine = LateSubmit(calls.client._engine, self, worker)
