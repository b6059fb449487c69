"""What the scheduler and the workers tell each other, one JSON datagram each over a socket pair.

Not a collective: the engine's own step broadcast is not one either, and a gloo message here would
mix with the collectives that are being watched.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Final

_LIMIT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One request's share of a step.

    `block_ids`, `pages` and `hit_tokens` come with the request's first step only (then
    `is_first`). Tokens [first_token, last_token) are computed; with `is_last` the prompt is done.
    """

    id: str
    first_token: int
    last_token: int
    is_first: bool = False
    is_last: bool = False
    length_tokens: int = 0
    hit_tokens: int = 0
    block_ids: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, the same on every rank."""

    index: int
    parts: tuple[Part, ...]

    @property
    def compute_tokens(self) -> int:
        return sum(part.last_token - part.first_token for part in self.parts)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one rank's load of one request brought, and whether its bytes are right.

    `bytes_equal`: the whole prefix, and right; `wrong_chunks`: how many of the loaded are not.
    """

    id: str
    loaded_tokens: int
    l1_tokens: int
    l2_tokens: int
    seconds: float
    bytes_equal: bool
    wrong_chunks: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One rank has finished a step."""

    rank: int
    index: int
    loads: tuple[Loaded, ...] = field(default=())


class Channel:
    """One end of a SOCK_SEQPACKET pair carrying JSON. EOFError when the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LIMIT_BYTES)
        self._end = end

    def send(self, kind: str, body: object = None) -> None:
        text = json.dumps([kind, body], separators=(",", ":")).encode()
        try:
            self._end.sendall(text)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the other end of the channel is gone") from None

    def receive(self) -> tuple[str, Any]:
        text = self._end.recv(_LIMIT_BYTES)
        if not text:
            raise EOFError("the other end of the channel is gone")
        kind, body = json.loads(text)
        return kind, body

    def close(self) -> None:
        self._end.close()

    def fileno(self) -> int:
        return self._end.fileno()


def pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(left), Channel(right)


def step_body(step: Step) -> dict[str, Any]:
    return asdict(step)


def step_from(body: dict[str, Any]) -> Step:
    return Step(body["index"], tuple(_part(part) for part in body["parts"]))


def _part(body: dict[str, Any]) -> Part:
    return Part(**{**body, "block_ids": tuple(body["block_ids"]), "pages": tuple(body["pages"])})


def done_from(body: dict[str, Any]) -> StepDone:
    return StepDone(body["rank"], body["index"], tuple(Loaded(**load) for load in body["loads"]))
