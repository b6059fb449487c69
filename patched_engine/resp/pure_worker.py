"""One connection of the pure engine: pipelines a tile's requests and settles its keys in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from patched_engine.resp.connection import ConnectError
from patched_engine.resp.engine import LOW_BYTES, PIPELINE_KEYS, Batch, Kind
from patched_engine.resp.parser import (
    Parser,
    ProtocolError,
    Push,
    ReplyError,
    Signal,
    TooLong,
    WrongSize,
)
from patched_engine.resp.results import Outcome
from patched_engine.resp.stream import Late, Stream

if TYPE_CHECKING:
    from patched_engine.resp.pure import PureEngine

_FOREVER: Final = float("inf")
_VERBS: Final = {
    Kind.GET: b"*2\r\n$3\r\nGET\r\n",
    Kind.SET: b"*3\r\n$3\r\nSET\r\n",
    Kind.EXISTS: b"*2\r\n$6\r\nEXISTS\r\n",
    Kind.DEL: b"*2\r\n$3\r\nDEL\r\n",
}
_CUT: Final = "the connection was cut before the reply was whole"
_LATE: Final = "no whole reply within the deadline; the connection was closed"
_TOTAL: Final = "not finished within the total deadline"
_CLOSED: Final = "the client was closed"


@dataclass(slots=True)
class Tile:
    """Keys [first, end) of a batch, for one connection."""

    ticket: int
    batch: Batch
    first: int
    end: int
    until: float
    outcomes: bytearray
    details: dict[int, str]

    def settle(self, index: int, outcome: Outcome, detail: str = "") -> None:
        if detail:
            self.details[index] = detail
        self.outcomes[index] = outcome

    def settle_rest(self, start: int, outcome: Outcome, detail: str) -> None:
        for index in range(start, self.end):
            if not self.outcomes[index]:
                self.settle(index, outcome, detail)

    def size(self, index: int) -> int:
        return len(self.batch.views[index]) if self.batch.views else 0


class _Broken(Exception):
    """The connection cannot go on; the key at the head is charged with this."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        self.outcome = outcome
        self.detail = detail


class Worker:
    """Runs on its own thread; `stream` is set by the engine, under its lock."""

    def __init__(self, engine: PureEngine, *, drain_bytes: int, window_bytes: int) -> None:
        self.stream: Stream | None = None
        self._engine = engine
        self._drain_bytes = drain_bytes
        self._window_bytes = window_bytes
        self._parser = Parser(drain_bytes=drain_bytes)

    def run(self, tile: Tile) -> None:
        """Settles every key of the tile."""
        head = sent = tile.first
        while head < tile.end:
            if tile.until <= time.monotonic():
                if sent > head:
                    self._engine.disconnect(self)
                return tile.settle_rest(head, Outcome.DEADLINE, _TOTAL)
            if sent == head and self.stream and (self.stream.is_stale or not self._parser.is_idle):
                self._engine.disconnect(self)
            if self.stream is None:
                try:
                    self._connect()
                except ConnectError as error:
                    closed = self._engine.is_stopping()
                    kind = Outcome.CLOSED if closed else Outcome.UNREACHABLE
                    return tile.settle_rest(head, kind, _CLOSED if closed else str(error))
            try:
                sent = self._send(tile, head, sent)
                self._answer(tile, head)
                head += 1
            except _Broken as broken:
                self._engine.disconnect(self)
                # What was sent with it and never answered is asked again on the next connection,
                # except after a deadline: that has waited as long.
                charged = max(sent, head + 1) if broken.outcome is Outcome.DEADLINE else head + 1
                for index in range(head, charged):
                    if not tile.outcomes[index]:
                        tile.settle(index, broken.outcome, broken.detail)
                head = sent = charged

    def _connect(self) -> None:
        self._engine.connect(self)
        self._parser = Parser(drain_bytes=self._drain_bytes)

    def _operation_end(self, tile: Tile) -> float:
        seconds = tile.batch.deadlines.operation_seconds
        return min(tile.until, _FOREVER if seconds is None else time.monotonic() + seconds)

    def _send(self, tile: Tile, head: int, sent: int) -> int:
        """Requests from `sent` on, as many as the pipeline takes; returns the first not sent."""
        batch = tile.batch
        flying = sum(tile.size(i) for i in range(head, sent))
        parts: list[bytes | memoryview] = []
        gathered: list[bytes | memoryview] = []
        while sent < tile.end and sent - head < PIPELINE_KEYS:
            size = tile.size(sent)
            if sent > head and flying + size > self._window_bytes:
                break
            key = batch.keys[sent]
            gathered.append(b"%s$%d\r\n%s\r\n" % (_VERBS[batch.kind], len(key), key))
            if batch.kind is Kind.SET:
                gathered.append(b"$%d\r\n" % size)
                if size < LOW_BYTES:
                    gathered.append(batch.views[sent])
                else:
                    parts += (b"".join(gathered), batch.views[sent])
                    gathered = []
                gathered.append(b"\r\n")
            flying += size
            sent += 1
        if gathered:
            parts.append(b"".join(gathered))
        if parts:
            assert self.stream is not None
            try:
                self.stream.send(parts, self._operation_end(tile))
            except Late:
                raise _Broken(Outcome.DEADLINE, _LATE) from None
            except OSError as error:
                raise self._cut(error) from None
        return sent

    def _answer(self, tile: Tile, head: int) -> None:
        """Reads the head's reply and settles it. Raises _Broken."""
        batch, parser = tile.batch, self._parser
        is_get = batch.kind is Kind.GET
        parser.expect(batch.views[head] if is_get else None)
        try:
            answer = self._receive(self._operation_end(tile))
        except TooLong as error:
            kind = Outcome.WRONG_SIZE if is_get else Outcome.PROTOCOL
            raise _Broken(kind, _wrong_size(tile, head, error.size_bytes)) from None
        except ProtocolError as error:
            raise _Broken(Outcome.PROTOCOL, f"{error}; the connection was closed") from None
        except Late:
            raise _Broken(Outcome.DEADLINE, _LATE) from None
        except OSError as error:
            raise self._cut(error) from None
        if isinstance(answer, ReplyError):
            tile.settle(head, Outcome.REFUSED, str(answer))
        elif is_get and answer is Signal.FILLED:
            tile.settle(head, Outcome.VALUE)
        elif is_get and answer is None:
            tile.settle(head, Outcome.MISS)
        elif is_get and isinstance(answer, WrongSize):
            tile.settle(head, Outcome.WRONG_SIZE, _wrong_size(tile, head, answer.size_bytes))
        elif batch.kind is Kind.SET and answer == b"OK":
            tile.settle(head, Outcome.VALUE)
        elif batch.kind >= Kind.EXISTS and type(answer) is int and answer >= 0:
            tile.settle(head, Outcome.VALUE if answer else Outcome.MISS)
        else:
            raise _Broken(
                Outcome.PROTOCOL, f"{str(answer)[:40]!r} is no reply to {batch.kind.name}"
            )

    def _receive(self, until: float) -> object:
        parser, stream = self._parser, self.stream
        assert stream is not None
        while True:
            answer = parser.next()
            if answer is Signal.NEED_MORE:
                place = parser.buffer()
                parser.received(stream.receive_into(place, until, whole=parser.is_in_destination))
            elif not isinstance(answer, Push):
                return answer

    def _cut(self, error: OSError) -> _Broken:
        if self._engine.is_stopping():
            return _Broken(Outcome.CLOSED, _CLOSED)
        return _Broken(Outcome.LOST, f"{_CUT}: {error.strerror or error}")


def _wrong_size(tile: Tile, index: int, size_bytes: int) -> str:
    return f"the value is {size_bytes} bytes, {tile.size(index)} were expected"
