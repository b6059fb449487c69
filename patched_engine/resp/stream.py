"""The pure engine's socket: bytes in and out, plain or TLS, each call bounded by a deadline."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Final

_SLICE_SECONDS: Final = 0.2
_FOREVER: Final = float("inf")


class Late(Exception):
    """The deadline passed; the stream is no longer at the start of a reply."""


class Stream:
    """A connected socket. Instants are seconds on the monotonic clock. Raises OSError and Late."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        if not self._is_tls:
            # Blocking calls wake this often to look at the clock: no poll before every read.
            slice_ = struct.pack("@ll", 0, int(_SLICE_SECONDS * 1e6))
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, slice_)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, slice_)

    def receive_into(self, place: memoryview, until: float, *, whole: bool) -> int:
        """At least one byte; all of `place` at a stroke where `whole` and the deadline allow."""
        left = until - time.monotonic()
        if self._is_tls:
            return self._tls_receive(place, left)
        flags = socket.MSG_WAITALL if whole and left > 2 * _SLICE_SECONDS else socket.MSG_DONTWAIT
        while True:
            try:
                count = self._sock.recv_into(place, len(place), flags)
                if not count:
                    raise ConnectionResetError("the server closed the connection")
                return count
            except BlockingIOError:
                self._await(select.POLLIN, until)

    def send(self, parts: Sequence[bytes | memoryview], until: float) -> None:
        """All of it, from where it lies."""
        queue = [memoryview(part) for part in parts if len(part)]
        while queue:
            try:
                if self._is_tls:
                    self._sock.settimeout(_timeout(until))
                    count = self._sock.send(queue[0])
                else:
                    near = until - time.monotonic() < 2 * _SLICE_SECONDS
                    flags = socket.MSG_NOSIGNAL | (socket.MSG_DONTWAIT if near else 0)
                    count = self._sock.sendmsg(queue[:64], (), flags)
            except BlockingIOError:
                self._await(select.POLLOUT, until)
                continue
            except TimeoutError:
                raise Late from None
            while queue and count >= len(queue[0]):
                count -= len(queue.pop(0))
            if queue:
                queue[0] = queue[0][count:]
                if until <= time.monotonic():
                    raise Late

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection has ended, or has an answer that nobody asked for."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | select.POLLRDHUP)
        return bool(poller.poll(0))

    def shutdown(self) -> None:
        """Wakes the thread that sleeps in here; the descriptor stays that thread's to close."""
        with contextlib.suppress(OSError):
            # A TLS socket's own shutdown would touch the state that the other thread is using.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def abandon(self) -> None:
        """In a forked child: the descriptor only; the connection is the parent's."""
        self._sock.close()

    def _tls_receive(self, place: memoryview, left: float) -> int:
        if left <= 0:
            raise Late
        self._sock.settimeout(None if left == _FOREVER else left)
        try:
            count = self._sock.recv_into(place)
        except TimeoutError:
            raise Late from None
        if not count:
            raise ConnectionResetError("the server closed the connection")
        return count

    def _await(self, event: int, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise Late
        poller = select.poll()
        poller.register(self._sock, event)
        poller.poll(min(left, _SLICE_SECONDS) * 1000 + 1)


def _timeout(until: float) -> float | None:
    left = until - time.monotonic()
    if left <= 0:
        raise Late
    return None if left == _FOREVER else left
