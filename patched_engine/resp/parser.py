"""RESP2 and RESP3 without I/O, so that every split of every reply can be tried without a socket.

Bytes are received into the place this parser names: a value goes straight into its destination,
and only what is being parsed passes through the small window. Rules: https://valkey.io/topics/protocol.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field
from typing import Final

WINDOW_BYTES: Final = 65536
PEEK_BYTES: Final = 64  # read ahead before a large value: it lands in place, not in the window
_LARGE_BYTES: Final = 16384
_WHOLE: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,18})")
_BIG: Final = re.compile(rb"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|inf)|-?nan")


_OPENED: Final = object()  # a string or an aggregate was begun, or an attribute ended: no value yet


class ProtocolError(ValueError):
    """What came is no RESP, or more than is allowed; the stream cannot be read any further."""


class TooLong(ProtocolError):
    """A string longer than will be read past: only closing the connection gets rid of it."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a string of {size_bytes} bytes is more than will be read")
        self.size_bytes = size_bytes


class ReplyError(Exception):
    """An error reply, as a value: it answers its command and breaks nothing else."""


class Signal(enum.Enum):
    """What `Parser.next` returns beside values."""

    NEED_MORE = "the reply is not whole yet"
    FILLED = "the expected value is in its destination"


@dataclass(frozen=True, slots=True)
class WrongSize:
    """A value whose size is not the destination's: read past, the destination untouched."""

    size_bytes: int


class Push(list[object]):
    """RESP3 out-of-band data: answers nothing."""


@dataclass(slots=True)
class _Frame:
    """An aggregate being filled; a map counts keys and values."""

    type: bytes
    left: int
    items: list[object] = field(default_factory=list)


@dataclass(slots=True)
class _Body:
    """A length-prefixed string being read; `pieces` gathers it where it has no destination."""

    type: bytes
    size: int
    left: int
    destination: memoryview | None = None
    pieces: bytearray | None = None


class Parser:
    """Feed bytes (`buffer` and `received`, or `feed`), take replies (`next`).

    Arrays and sets become lists, maps lists of pairs, null None, errors ReplyError, pushes Push;
    attributes are dropped. After a ProtocolError every further call raises it again.
    """

    def __init__(
        self,
        *,
        max_string_bytes: int = 512 << 20,
        drain_bytes: int = 64 << 20,
        max_elements: int = 65536,
        max_depth: int = 9,
    ) -> None:
        self._max_string_bytes = max_string_bytes
        self._drain_bytes = drain_bytes
        self._max_elements = max_elements
        self._max_depth = max_depth
        self._window = bytearray(WINDOW_BYTES)
        self._view = memoryview(self._window)
        self._start = self._end = self._searched = 0
        self._stack: list[_Frame] = []
        self._body: _Body | None = None
        self._expected: memoryview | None = None
        self._failed: ProtocolError | None = None

    def expect(self, destination: memoryview | None) -> None:
        """Where the next reply's value goes if it is a string of exactly that many bytes."""
        self._expected = destination

    @property
    def unread_bytes(self) -> int:
        """Bytes received and not yet parsed: above 0 between replies, nobody asked for them."""
        return self._end - self._start

    @property
    def is_idle(self) -> bool:
        return not self.unread_bytes and self._body is None and not self._stack

    @property
    def is_in_destination(self) -> bool:
        """Whether `buffer()` is the rest of a value's own place: all of it is that value's."""
        body = self._body
        return (
            body is not None
            and body.destination is not None
            and body.left > 0
            and not self.unread_bytes
        )

    def buffer(self) -> memoryview:
        """Where the next bytes are to be received; empty only while whole replies wait in here."""
        body = self._body
        if self.is_in_destination:
            assert body is not None and body.destination is not None
            return body.destination[body.size - body.left :]
        if self._start == self._end:
            self._start = self._end = self._searched = 0
        elif self._end == WINDOW_BYTES and self._start:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._searched -= self._start
            self._start, self._end = 0, len(rest)
        ahead = WINDOW_BYTES
        if (body is None or body.destination is not None) and self._expected is not None:
            ahead = PEEK_BYTES if len(self._expected) >= _LARGE_BYTES else ahead
        return self._view[self._end : self._end + ahead]

    def received(self, count: int) -> None:
        """`count` bytes were put at the start of `buffer()`."""
        if self.is_in_destination:
            assert self._body is not None
            self._body.left -= count
        else:
            self._end += count

    def feed(self, data: bytes | bytearray | memoryview) -> int:
        """Copies in what fits and returns how many bytes that was: all, unless replies wait."""
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view) and (place := self.buffer()):
            count = min(len(place), len(view) - taken)
            place[:count] = view[taken : taken + count]
            self.received(count)
            taken += count
        return taken

    def next(self) -> object:
        """The next whole reply, Signal.FILLED for an expected value, or Signal.NEED_MORE.

        Raises ProtocolError.
        """
        if self._failed is not None:
            raise self._failed
        while True:
            value = self._string() if self._body is not None else self._line()
            if value is Signal.NEED_MORE:
                return value
            if value is not _OPENED:
                value = self._fold(value)
            if value is not _OPENED:
                if not isinstance(value, Push):  # it answers nothing: the value is still to come
                    self._expected = None
                return value

    def _fail(self, why: str) -> ProtocolError:
        self._failed = ProtocolError(why)
        return self._failed

    def _line(self) -> object:
        if self._start == self._end:
            return Signal.NEED_MORE
        kind = self._window[self._start]
        if kind not in b"+-:$*_#,(!=%~|>":
            raise self._fail(f"no reply begins with byte {kind:#04x}")
        end = self._window.find(b"\r\n", max(self._start, self._searched), self._end)
        if end < 0:
            if self._end - self._start >= WINDOW_BYTES:
                raise self._fail(f"a line of more than {WINDOW_BYTES} bytes")
            self._searched = max(self._start, self._end - 1)  # a CR may be the last byte
            return Signal.NEED_MORE
        line = bytes(self._view[self._start + 1 : end])
        self._start = end + 2
        self._searched = self._start
        return self._begin(bytes((kind,)), line)

    def _begin(self, kind: bytes, line: bytes) -> object:
        if kind == b"+":
            return line
        if kind == b"-":
            return ReplyError(line.decode("utf-8", "replace"))
        if kind == b":":
            return self._whole(line, "an integer")
        if kind in b"$!=":
            return self._open_string(kind, line)
        if kind in b"*~>%|":
            return self._open_aggregate(kind, line)
        if kind == b"_" and not line:
            return None
        if kind == b"#" and line in (b"t", b"f"):
            return line == b"t"
        if kind == b"," and _DOUBLE.fullmatch(line):
            return math.nan if line.endswith(b"nan") else float(line)
        if kind == b"(" and len(line) <= 4000 and _BIG.fullmatch(line):
            return int(line)
        raise self._fail(f"{line[:40]!r} after {kind!r}")

    def _whole(self, line: bytes, what: str) -> int:
        if _WHOLE.fullmatch(line) and line != b"-0":
            value = int(line)
            if -(2**63) <= value < 2**63:
                return value
        raise self._fail(f"{line[:40]!r} is not {what}")

    def _open_string(self, kind: bytes, line: bytes) -> object:
        size = self._whole(line, "a length")
        if size < 0:
            if size < -1 or kind != b"$":
                raise self._fail(f"a string of {size} bytes")
            return None
        expected = self._expected if kind == b"$" and not self._stack else None
        if expected is not None and size == len(expected):
            self._body = _Body(kind, size, size, destination=expected)
        elif size > (self._drain_bytes if expected is not None else self._max_string_bytes):
            self._failed = TooLong(size)
            raise self._failed
        else:
            self._body = _Body(
                kind, size, size, pieces=None if expected is not None else bytearray()
            )
        return _OPENED

    def _open_aggregate(self, kind: bytes, line: bytes) -> object:
        count = self._whole(line, "a count")
        if count == -1 and kind == b"*":
            return None
        if not 0 <= count <= self._max_elements:
            raise self._fail(f"{count} elements")
        if len(self._stack) >= self._max_depth:
            raise self._fail(f"replies nested more than {self._max_depth} deep")
        self._stack.append(_Frame(kind, count * 2 if kind in b"%|" else count))
        return _OPENED if count else self._close()

    def _string(self) -> object:
        body = self._body
        assert body is not None
        if body.left:
            count = min(body.left, self.unread_bytes)
            piece = self._view[self._start : self._start + count]
            if body.destination is not None:
                at = body.size - body.left
                body.destination[at : at + count] = piece
            elif body.pieces is not None:
                body.pieces += piece
            self._start += count
            body.left -= count
        if body.left or self.unread_bytes < 2:
            return Signal.NEED_MORE
        if self._window[self._start : self._start + 2] != b"\r\n":
            raise self._fail("a string does not end where its length says")
        self._start += 2
        self._searched = self._start
        self._body = None
        if body.destination is not None:
            return Signal.FILLED
        if body.pieces is None:
            return WrongSize(body.size)
        text = bytes(body.pieces)
        if body.type == b"!":
            return ReplyError(text.decode("utf-8", "replace"))
        return text[4:] if body.type == b"=" else text

    def _fold(self, value: object) -> object:
        """Puts a whole value into its aggregate; what is whole at the outside comes out."""
        while self._stack:
            frame = self._stack[-1]
            frame.items.append(value)
            frame.left -= 1
            if frame.left:
                return _OPENED
            value = self._close()
            if value is _OPENED:
                return value
        return value

    def _close(self) -> object:
        frame = self._stack.pop()
        if frame.type == b"|":
            return _OPENED  # an attribute stands before a reply and is none
        if frame.type == b"%":
            return list(zip(frame.items[::2], frame.items[1::2], strict=True))
        return Push(frame.items) if frame.type == b">" else frame.items
