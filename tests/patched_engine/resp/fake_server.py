"""A server that answers with scripted bytes: for faults that no real server can be made to have."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

from patched_engine.resp.parser import Parser, Signal


class Peer:
    """One accepted connection, as the script sees it."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self._parser = Parser()

    def command(self) -> list[bytes]:
        """The next command; raises ConnectionError when the client has gone."""
        while (parsed := self._parser.next()) is Signal.NEED_MORE:
            count = self.sock.recv_into(self._parser.buffer())
            if not count:
                raise ConnectionResetError
            self._parser.received(count)
        assert isinstance(parsed, list)
        return parsed

    def send(self, *pieces: bytes, pause_seconds: float = 0.0005) -> None:
        """Each piece in a packet of its own."""
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(pause_seconds)
            self.sock.sendall(piece)

    def until_gone(self) -> None:
        while self.sock.recv(65536):
            pass


Script = Callable[[Peer], None]


class FakeServer:
    """Runs `script` for each connection, on a thread of its own; closes it when the script ends."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._peers: list[Peer] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"resp://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many were ever accepted."""
        return len(self._peers)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(sock, len(self._peers))
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        with contextlib.suppress(OSError):
            self._script(peer)
        peer.sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@contextlib.contextmanager
def fake_server(script: Script) -> Iterator[FakeServer]:
    server = FakeServer(script)
    try:
        yield server
    finally:
        server.close()


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)
