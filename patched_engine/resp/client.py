"""The client: every call ends, within its deadlines, with one result a key.

Upstream's client lost completions that came before their future was registered (LMCache #5547) and
hung for ever on a missing key (#5551). Here one lock covers submit-and-register and drain.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from patched_engine.locks import ForkSafeLock
from patched_engine.resp.batches import BytesLike, Key, make_batch
from patched_engine.resp.choose import EngineStatus, make_engine
from patched_engine.resp.connection import ConnectError, encode, open_connection, receive_reply
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.engine import Batch, Engine, EngineClosed, Kind
from patched_engine.resp.lanes import Lanes
from patched_engine.resp.parser import Parser, ReplyError
from patched_engine.resp.results import KeyResult, Outcome
from patched_engine.resp.url import Endpoint, parse_endpoint

MOST_CONNECTIONS: Final = 1024
_CLOSED: Final = KeyResult(Outcome.CLOSED, "the client was closed")

Future = concurrent.futures.Future
Results = list[KeyResult]


@dataclass(slots=True)
class _Pending:
    """A batch in flight and what tells its caller. It keeps the buffers alive until it is done."""

    batch: Batch
    deliver: Callable[[Results], None] | None


class RespClient:
    """GET, SET, EXISTS and DEL of many keys over `connections` connections, one thread each.

    Safe from any thread. Connections are made when first needed, and made again, with backoff, when
    lost. Results come in the order of the keys. No call raises for what a server or a network does:
    that is in the results. ValueError is for arguments that are wrong.

    A buffer is touched until its call has returned, its future is done or its await has ended, and
    never afterwards; cancelling an await waits for that.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        connections: int = 8,
        deadlines: Deadlines | None = None,
        engine: str | None = None,
    ) -> None:
        """`engine` is "auto", "compiled" or "pure"; None takes STALLSCOPE_RESP_ENGINE, else auto.

        Raises EndpointError for a bad address, ValueError, and BuildError where the compiled engine
        was demanded and cannot be had.
        """
        self.endpoint = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        if not 1 <= connections <= MOST_CONNECTIONS:
            raise ValueError(f"connections is {connections}: give 1 to {MOST_CONNECTIONS}")
        if self.endpoint.tls is not None:
            self.endpoint.tls.context()  # a bad file is said now, not at the first call
        self.connections = connections
        self.deadlines = deadlines or Deadlines()
        self._choice = engine
        self._start()
        _clients.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._pending: dict[int, _Pending] = {}
        self._engine: Engine
        self._engine, self._status = make_engine(
            self.endpoint, self.connections, self.deadlines, self._choice
        )
        self._lanes = Lanes(self._engine.open_lane, self._drain)
        self._forked = False

    @property
    def status(self) -> EngineStatus:
        """Which engine this client has and why."""
        return self._status

    # The blocking face.

    def get(self, keys: Sequence[Key], buffers: Sequence[BytesLike]) -> Results:
        """Each value into its buffer, which must be exactly as long as the value, in bytes."""
        return self.call(Kind.GET, keys, buffers)

    def set(self, keys: Sequence[Key], buffers: Sequence[BytesLike]) -> Results:
        """Each buffer's bytes under its key."""
        return self.call(Kind.SET, keys, buffers)

    def exists(self, keys: Sequence[Key]) -> Results:
        """VALUE for a key that is there, MISS for one that is not."""
        return self.call(Kind.EXISTS, keys)

    def delete(self, keys: Sequence[Key]) -> Results:
        """VALUE for a key that was deleted, MISS for one that was not there.

        A DEL that was sent and never answered is sent again, so MISS may mean deleted just before.
        """
        return self.call(Kind.DEL, keys)

    def call(
        self,
        kind: Kind,
        keys: Sequence[Key],
        buffers: Sequence[BytesLike] = (),
        *,
        deadlines: Deadlines | None = None,
    ) -> Results:
        """Any command, with the client's deadlines or those given; blocks until it is done."""
        return self._call(self._batch(kind, keys, buffers, deadlines))

    # The face for futures, and the one for asyncio.

    def submit(
        self,
        kind: Kind,
        keys: Sequence[Key],
        buffers: Sequence[BytesLike] = (),
        *,
        deadlines: Deadlines | None = None,
    ) -> Future[Results]:
        """The same as a future, which is done when no buffer is touched any more.

        It cannot be cancelled: that would not stop the bytes.
        """
        batch = self._batch(kind, keys, buffers, deadlines)
        future: Future[Results] = Future()
        future.set_running_or_notify_cancel()
        self._submit(batch, future.set_result, self._lanes.for_threads)
        return future

    async def aget(self, keys: Sequence[Key], buffers: Sequence[BytesLike]) -> Results:
        """`get`, awaited."""
        return await self.asubmit(Kind.GET, keys, buffers)

    async def aset(self, keys: Sequence[Key], buffers: Sequence[BytesLike]) -> Results:
        """`set`, awaited."""
        return await self.asubmit(Kind.SET, keys, buffers)

    async def aexists(self, keys: Sequence[Key]) -> Results:
        """`exists`, awaited."""
        return await self.asubmit(Kind.EXISTS, keys)

    async def adelete(self, keys: Sequence[Key]) -> Results:
        """`delete`, awaited."""
        return await self.asubmit(Kind.DEL, keys)

    async def asubmit(
        self,
        kind: Kind,
        keys: Sequence[Key],
        buffers: Sequence[BytesLike] = (),
        *,
        deadlines: Deadlines | None = None,
    ) -> Results:
        """Any command, awaited on the running loop, which the completions wake by themselves."""
        batch = self._batch(kind, keys, buffers, deadlines)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Results] = loop.create_future()
        self._submit(batch, future.set_result, lambda: self._lanes.for_loop(loop))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError as error:
                # The caller will free the buffers: not before the last byte has been moved.
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return future.result()

    def check(self) -> str:
        """Connects once and asks PING; returns the server's answer, for start-up and `doctor`.

        Raises ConnectError, in one line that says what is wrong.
        """
        sock = open_connection(self.endpoint, self.deadlines.connect_seconds)
        try:
            seconds = self.deadlines.connect_seconds
            until = None if seconds is None else time.monotonic() + seconds
            sock.settimeout(seconds)
            sock.sendall(encode(("PING",)))
            answer = receive_reply(sock, Parser(), until)
        except (OSError, ValueError) as error:
            why = str(error) or "not within the connect deadline"
            raise ConnectError(f"{self.endpoint}: PING was not answered: {why}") from None
        finally:
            sock.close()
        if isinstance(answer, ReplyError):
            raise ConnectError(f"{self.endpoint}: PING was refused: {answer}")
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)

    def close(self) -> None:
        """Ends what is in flight (its results say CLOSED), then threads and connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._forked:
            return
        self._engine.close()
        self._lanes.close()
        with self._lock:
            while self._waiting:
                self._left.wait()
        self._engine.free()

    def __enter__(self) -> RespClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batch(
        self,
        kind: Kind,
        keys: Sequence[Key],
        buffers: Sequence[BytesLike],
        deadlines: Deadlines | None,
    ) -> Batch:
        if self._forked:
            _restart(self)
        return make_batch(kind, keys, buffers, deadlines or self.deadlines, self.connections)

    def _call(self, batch: Batch) -> Results:
        with self._lock:
            if self._closed:
                return [_CLOSED] * len(batch.keys)
            engine = self._engine
            ticket = engine.submit(batch, -1)
            self._pending[ticket] = _Pending(batch, None)
            self._waiting += 1
        finished = False
        results: Results = []
        try:
            engine.wait(ticket)
            finished = True
        except BaseException:  # Ctrl-C: the buffers are the caller's again only when it is done
            engine.wait(ticket)
            finished = True
            raise
        finally:
            with self._lock:
                self._waiting -= 1
                self._left.notify_all()
                if finished:  # else it was interrupted twice, and what it touches stays with us
                    del self._pending[ticket]
                    results = engine.take(ticket)
        return results

    def _submit(
        self, batch: Batch, deliver: Callable[[Results], None], lane: Callable[[], int]
    ) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                try:
                    ticket = self._engine.submit(batch, lane())
                    self._pending[ticket] = _Pending(batch, deliver)
                except EngineClosed:
                    closed = True
        if closed:
            deliver([_CLOSED] * len(batch.keys))

    def _drain(self, lane: int) -> None:
        """Delivers what is complete. Under the lock of `_submit`: each ticket is registered."""
        with self._lock:
            done = [
                (self._pending.pop(ticket), self._engine.take(ticket))
                for ticket in self._engine.drain(lane)
            ]
        for pending, results in done:
            if pending.deliver is not None:
                # A future whose loop was closed has nobody waiting; the others here do have.
                with contextlib.suppress(RuntimeError):
                    pending.deliver(results)


_clients: weakref.WeakSet[RespClient] = weakref.WeakSet()
_restarting: Final = ForkSafeLock()


def _restart(client: RespClient) -> None:
    """In a forked child: threads and connections of its own, when it first calls."""
    with _restarting:
        if client._forked:
            client._start()


def _after_fork() -> None:
    """The parent's connections must not be spoken on from here, nor its threads waited for."""
    for client in list(_clients):
        if not client._closed and not client._forked:
            client._engine.abandon()
            client._forked = True
        client._lock = threading.Lock()
        client._left = threading.Condition(client._lock)


def _at_exit() -> None:
    for client in list(_clients):
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
