"""Cuts a trace's one huge JSON array into pieces that are decoded one at a time.

The cut is made where an event's first key follows `},{`: inside a JSON string its quotes would be
escaped, so such a place is never inside one. A piece that does not decode is read event by event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from exporters import reasons
from exporters.readers.profiles.errors import ProfileError
from exporters.readers.profiles.stream import Source

E = TypeVar("E")

_ARRAY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY: Final = re.compile(rb'\s*\{\s*("[^"\\]{1,64}")')
_HEAD_BYTES: Final = 16 << 20
# The longest single event (a stack of strings), and the longest text after the array.
_EVENT_BYTES: Final = 32 << 20
_SPACE: Final = b" \t\r\n"
_CLOSE: Final = ord("]")
_COMMA: Final = ord(",")
_BLANKS: Final = bytes.maketrans(bytes(range(32)), b" " * 32)


class EventReader(Generic[E]):
    """Iterates over lists of events (of `event_type`); `header` then holds every other key.

    `left_out` counts objects that are no events. Raises ProfileError.
    """

    def __init__(self, source: Source, event_type: type[E]) -> None:
        self.header: dict[str, Any] = {}
        self.left_out = 0
        self._source = source
        self._type = event_type
        self._decoder = msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]
        self._json = json.JSONDecoder()
        self._is_bare = False

    def __iter__(self) -> Iterator[list[E]]:
        # One buffer, and pieces that fit the allocator's own arenas: no page is faulted in twice.
        text = bytearray(self._head())
        key = self._first_key(text)
        while True:
            piece = self._source.read()
            text += piece
            cut = _last_cut(text, key)
            if cut > 0:
                if events := self._upto(text, cut):
                    yield events
            elif len(text) > _EVENT_BYTES:
                raise self._damaged("an event of more than 32 MB, or none at all")
            if not piece:
                break
        events, rest = self._slowly(text)
        if events:
            yield events
        self._tail(rest)

    def _head(self) -> bytes:
        """Everything up to the array is header; returns what follows its bracket."""
        head = b""
        while True:
            piece = self._source.read()
            head += piece
            if head.lstrip()[:1] == b"[":
                self._is_bare = True
                return head.lstrip()[1:]
            if found := _ARRAY.search(head):
                start = head[: found.start()].rstrip().rstrip(b",")
                self._keep(start + b"}")
                return head[found.end() :]
            if not piece or len(head) > _HEAD_BYTES:
                raise self._no_events(head, not piece)

    def _no_events(self, head: bytes, is_whole: bool) -> ProfileError:
        if is_whole:
            try:
                json.loads(head)
            except (ValueError, RecursionError):
                return self._source.cut_short("its JSON ends before any event")
        return ProfileError(
            str(self._source.path),
            reasons.NOT_A_PROFILE,
            'is JSON without "traceEvents": not a trace',
            "give what torch.profiler or nsys export wrote",
        )

    def _first_key(self, text: bytearray) -> bytes:
        found = _FIRST_KEY.match(text)
        return bytes(found[1]) if found else b'"ph"'

    def _upto(self, text: bytearray, cut: int) -> list[E]:
        """Takes the events before the comma at `cut` out of `text`. Where it turns out to stand
        inside an event, that event stays."""
        text[cut] = _CLOSE
        text[:0] = b"["
        with memoryview(text) as whole, whole[: cut + 2] as view:
            try:
                events = self._decoder.decode(view)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                events = None
        unread = b""
        if events is None:
            events, unread = self._mended(bytes(text[1 : cut + 1]))
        if unread:
            text[cut + 1] = _COMMA
            text[: cut + 1] = unread
        else:
            del text[: cut + 2]
        return events

    def _mended(self, body: bytes) -> tuple[list[E], bytes]:
        """The events of a piece that does not decode as it is, and what of it is not whole yet."""
        try:
            return self._decoder.decode(b"[" + _cleaned(body) + b"]"), b""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._slowly(body)

    def _slowly(self, body: bytes | bytearray) -> tuple[list[E], bytes]:
        """Event by event, leaving out what is none; stops at the array's end or a cut event."""
        text = _cleaned(body).decode()
        events: list[E] = []
        at = 0
        while True:
            while at < len(text) and text[at] in " ,":
                at += 1
            if at >= len(text) or text[at] == "]":
                break
            try:
                value, at = self._json.raw_decode(text, at)
            except (ValueError, RecursionError):
                break
            try:
                events.append(msgspec.convert(value, self._type, strict=False))
            except (msgspec.ValidationError, ValueError):
                self.left_out += 1
        if len(text) - at > _EVENT_BYTES:
            raise self._damaged("text that is no event")
        return events, text[at:].encode()

    def _tail(self, rest: bytes) -> None:
        rest = rest.strip()
        if not rest.startswith(b"]"):
            raise self._source.cut_short("its JSON ends in the middle of an event")
        rest = rest[1:].lstrip()
        if self._is_bare:
            if rest:
                raise self._damaged("text after its events")
            return
        self._keep(b"{" + rest.lstrip(b", \t\r\n"))

    def _keep(self, text: bytes) -> None:
        try:
            found = json.loads(text.decode(errors="replace"), strict=False)
        except (ValueError, RecursionError) as error:
            if text.rstrip().endswith(b"}"):
                raise self._damaged("JSON that does not parse around its events") from error
            raise self._source.cut_short("its JSON ends after the events") from error
        self.header.update(found)

    def _damaged(self, what: str) -> ProfileError:
        return ProfileError(
            str(self._source.path),
            reasons.UNREADABLE,
            f"holds {what}, before byte {self._source.read_bytes}",
        )


def _last_cut(text: bytearray, key: bytes) -> int:
    """Index of the last comma between two events whose second begins with `key`; -1 for none."""
    at = len(text)
    while (at := text.rfind(key, 0, at)) > 0:
        brace = _before(text, at)
        if brace >= 0 and text[brace : brace + 1] == b"{":
            comma = _before(text, brace)
            if comma >= 0 and text[comma : comma + 1] == b",":
                end = _before(text, comma)
                if end >= 0 and text[end : end + 1] == b"}":
                    return comma
    return -1


def _before(text: bytearray, at: int) -> int:
    """Index of the last character before `at` that is no space."""
    at -= 1
    while at >= 0 and text[at] in _SPACE:
        at -= 1
    return at


def _cleaned(body: bytes | bytearray) -> bytes:
    """Valid UTF-8 without raw control characters, which some profilers leave in names."""
    return body.decode(errors="replace").encode().translate(_BLANKS)
