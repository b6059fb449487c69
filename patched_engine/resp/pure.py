"""The engine in Python alone: for TLS, and wherever the core cannot be built."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from patched_engine.resp.connection import Backoff, ConnectError, Open, open_connection
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.engine import DRAIN_BYTES, WINDOW_BYTES, Batch, EngineClosed
from patched_engine.resp.pure_worker import Tile, Worker
from patched_engine.resp.results import KeyResult, Outcome, result_of
from patched_engine.resp.stream import Stream
from patched_engine.resp.url import Endpoint

_FOREVER: Final = float("inf")
_CLOSED: Final = "the client was closed"


@dataclass(slots=True)
class _Flight:
    """A submitted batch: the number of keys not yet settled, and whom to tell."""

    batch: Batch
    lane: int
    left: int
    until: float
    outcomes: bytearray
    details: dict[int, str] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Lane:
    """Completions, and the eventfd that tells of them."""

    wake: int
    done: list[int] = field(default_factory=list)


class PureEngine:
    """One Python thread a connection, and one that ends what was not begun in time."""

    name = "pure"

    def __init__(
        self,
        endpoint: Endpoint,
        connections: int,
        deadlines: Deadlines,
        *,
        drain_bytes: int = DRAIN_BYTES,
        window_bytes: int = WINDOW_BYTES,
        open_socket: Open = open_connection,
    ) -> None:
        self._endpoint = endpoint
        self._deadlines = deadlines
        self._open = open_socket
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._timer = threading.Condition(self._lock)
        self._queue: deque[Tile] = deque()
        self._flights: dict[int, _Flight] = {}
        self._lanes: list[_Lane] = []
        self._next_ticket = 1
        self._stopping = False
        self._backoff = Backoff()
        self._down_until = 0.0
        self._reason = ""
        self._workers = [
            Worker(self, drain_bytes=drain_bytes, window_bytes=window_bytes)
            for _ in range(connections)
        ]
        self._threads = [
            threading.Thread(
                target=self._serve, args=(w,), name=f"stallscope-resp-{i}", daemon=True
            )
            for i, w in enumerate(self._workers)
        ]
        self._threads.append(
            threading.Thread(target=self._keep_time, name="stallscope-resp-timer", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    # What the client calls.

    def submit(self, batch: Batch, lane: int) -> int:
        count, size = len(batch.keys), batch.tile_keys
        total = batch.deadlines.total_seconds
        until = _FOREVER if total is None else time.monotonic() + total
        flight = _Flight(batch, lane, count, until, bytearray(count))
        with self._lock:
            if self._stopping:
                raise EngineClosed
            ticket = self._next_ticket
            self._next_ticket += 1
            self._flights[ticket] = flight
            for first in range(0, count, size):
                end = min(first + size, count)
                tile = Tile(ticket, batch, first, end, until, flight.outcomes, flight.details)
                self._queue.append(tile)
                self._work.notify()
            if until != _FOREVER:
                self._timer.notify()
            if not count:
                self._settled(ticket, 0)
        return ticket

    def wait(self, ticket: int) -> None:
        self._flights[ticket].done.wait()

    def open_lane(self) -> tuple[int, int]:
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with self._lock:
            self._lanes.append(_Lane(wake))
            return len(self._lanes) - 1, wake

    def drain(self, lane: int) -> list[int]:
        with self._lock:
            queue = self._lanes[lane]
            found, queue.done = queue.done, []
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(queue.wake)
            return found

    def take(self, ticket: int) -> list[KeyResult]:
        flight = self._flights.pop(ticket)
        return [
            result_of(code, flight.details.get(i, "")) for i, code in enumerate(flight.outcomes)
        ]

    def close(self) -> None:
        with self._lock:
            self._stopping = True
            self._expire(everything=True)
            for worker in self._workers:
                if worker.stream is not None:
                    worker.stream.shutdown()
            self._work.notify_all()
            self._timer.notify_all()
        for thread in self._threads:
            thread.join()

    def free(self) -> None:
        with self._lock:
            lanes, self._lanes = self._lanes, []
        for lane in lanes:
            os.close(lane.wake)

    def abandon(self) -> None:
        for worker in self._workers:
            if worker.stream is not None:
                worker.stream.abandon()
        for lane in self._lanes:
            os.close(lane.wake)

    # What the workers call.

    def is_stopping(self) -> bool:
        """Whether `close` was called."""
        return self._stopping

    def connect(self, worker: Worker) -> None:
        """Gives the worker a connection. Raises ConnectError, at once while the server is down."""
        with self._lock:
            if self.is_stopping() or time.monotonic() < self._down_until:
                raise ConnectError(_CLOSED if self.is_stopping() else self._reason)
        try:
            sock = self._open(self._endpoint, self._deadlines.connect_seconds)
        except ConnectError as error:
            with self._lock:
                self._reason = str(error)
                self._down_until = time.monotonic() + self._backoff.failure_pause_seconds()
            raise
        stream = Stream(sock)
        with self._lock:
            self._backoff.success()
            self._down_until = 0.0
            if self.is_stopping():
                stream.close()
                raise ConnectError(_CLOSED)
            worker.stream = stream

    def disconnect(self, worker: Worker) -> None:
        with self._lock:  # against `shutdown` of a descriptor that is someone else's by then
            stream, worker.stream = worker.stream, None
            if stream is not None:
                stream.close()

    def _serve(self, worker: Worker) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._stopping:
                    self._work.wait()
                if not self._queue:
                    break
                tile = self._queue.popleft()
            try:
                worker.run(tile)
            except Exception as error:  # a bug here must not cost the caller its answer
                self.disconnect(worker)
                tile.settle_rest(tile.first, Outcome.PROTOCOL, f"internal: {error!r}")
            with self._lock:
                self._settled(tile.ticket, tile.end - tile.first)
            del tile  # an idle thread must not hold the last batch's buffers
        self.disconnect(worker)

    def _settled(self, ticket: int, keys: int) -> None:
        """Lock held."""
        flight = self._flights[ticket]
        flight.left -= keys
        if flight.left:
            return
        if flight.lane >= 0:
            self._lanes[flight.lane].done.append(ticket)
            os.eventfd_write(self._lanes[flight.lane].wake, 1)
        flight.done.set()

    def _expire(self, *, everything: bool) -> float:
        """Lock held. Ends the tiles nobody began in time; the next instant at which one is due."""
        now, kept, due = time.monotonic(), deque[Tile](), _FOREVER
        for tile in self._queue:
            if everything:
                tile.settle_rest(tile.first, Outcome.CLOSED, _CLOSED)
            elif tile.until <= now:
                late = "not begun within the total deadline"
                tile.settle_rest(tile.first, Outcome.DEADLINE, late)
            else:
                kept.append(tile)
                due = min(due, tile.until)
                continue
            self._settled(tile.ticket, tile.end - tile.first)
        self._queue = kept
        return due

    def _keep_time(self) -> None:
        with self._lock:
            while not self._stopping:
                due = self._expire(everything=False)
                self._timer.wait(None if due == _FOREVER else max(0.0, due - time.monotonic()))
