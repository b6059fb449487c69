"""Opens one connection that is ready for commands: address, TLS, HELLO or AUTH, SELECT."""

from __future__ import annotations

import concurrent.futures
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from patched_engine.resp.parser import Parser, ProtocolError, Push, ReplyError, Signal
from patched_engine.resp.url import Endpoint, EndpointError

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0  # so that service is back within 2 s of the server
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)

Open = Callable[[Endpoint, float | None], socket.socket]


class ConnectError(ConnectionError):
    """No usable connection; one line: the address, what was tried, what came back."""


class Backoff:
    """How long to wait after each failure in a row: doubling, with jitter, bounded."""

    def __init__(self) -> None:
        self._failures = 0

    def success(self) -> None:
        self._failures = 0

    def failure_pause_seconds(self) -> float:
        """The pause that this failure calls for."""
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16), _LONGEST_PAUSE_SECONDS)
        self._failures += 1
        # Ranks that lost one server together must not come back to it together.
        return pause * random.uniform(0.5, 1.0)


def open_connection(endpoint: Endpoint, connect_seconds: float | None) -> socket.socket:
    """A connected, authenticated socket with its database selected, without a timeout.

    Raises ConnectError within about `connect_seconds`.
    """
    until = None if connect_seconds is None else time.monotonic() + connect_seconds
    sock: socket.socket | None = None
    try:
        sock = _connect(endpoint, until)
        _greet(sock, endpoint, until)
        sock.settimeout(None)
        return sock
    except (OSError, ProtocolError, EndpointError) as error:
        if sock is not None:
            sock.close()
        raise ConnectError(f"{endpoint}: {_reason(error)}") from None


def _connect(endpoint: Endpoint, until: float | None) -> socket.socket:
    if endpoint.unix_path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_left(until))
            sock.connect(endpoint.unix_path)
        except OSError:
            sock.close()
            raise
        return sock
    sock = _connect_tcp(endpoint, until)
    try:
        for level, option, value in _KEEPALIVE:
            sock.setsockopt(level, option, value)
        if endpoint.tls is not None:
            sock.settimeout(_left(until))
            sock = endpoint.tls.context().wrap_socket(sock, server_hostname=endpoint.host)
    except TimeoutError:
        sock.close()
        raise OSError("TLS: no answer within the connect deadline: is this a TLS port?") from None
    except (OSError, EndpointError):
        sock.close()
        raise
    return sock


def _connect_tcp(endpoint: Endpoint, until: float | None) -> socket.socket:
    """To the first of the host's addresses that answers, within one deadline for all of them."""
    refused: OSError = OSError(f"{endpoint.host} has no address")
    for family, kind, protocol, _, address in _addresses(endpoint, until):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(until))
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            refused = error
    raise refused


def _addresses(endpoint: Endpoint, until: float | None) -> list[Any]:
    """The host's addresses, asked for anew each time: a pod that moved has another."""
    try:
        literal = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(endpoint.host, endpoint.port, 0, socket.SOCK_STREAM, 0, literal)
    except socket.gaierror:
        pass
    found: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

    def ask() -> None:
        try:
            found.set_result(
                socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            )
        except OSError as error:
            found.set_exception(error)

    # The resolver knows no deadline of ours and cannot be interrupted: it is left behind.
    threading.Thread(target=ask, name="stallscope-resp-resolve", daemon=True).start()
    return found.result(_left(until))


def _greet(sock: socket.socket, endpoint: Endpoint, until: float | None) -> None:
    """Sends what the endpoint calls for and requires a good answer to each."""
    commands: list[tuple[str, ...]] = []
    credentials = (endpoint.username or "default", endpoint.password)
    if endpoint.protocol == 3:
        login = ("AUTH", *credentials) if endpoint.password else ()
        commands.append(("HELLO", "3", *login))
    elif endpoint.password:
        commands.append(("AUTH", *(credentials if endpoint.username else credentials[1:])))
    if endpoint.database:
        commands.append(("SELECT", str(endpoint.database)))
    parser = Parser()
    for command in commands:
        sock.settimeout(_left(until))
        sock.sendall(encode(command))
        answer = receive_reply(sock, parser, until)
        if isinstance(answer, ReplyError):
            raise ConnectionRefusedError(f"{command[0]} was refused: {answer}")
    if not parser.is_idle:
        raise ProtocolError("the server sent more than was asked for")


def receive_reply(sock: socket.socket, parser: Parser, until: float | None) -> object:
    """The next reply on a socket nobody else reads; `until` is on the monotonic clock, in seconds.

    Raises OSError (a TimeoutError among them) and ProtocolError.
    """
    while True:
        answer = parser.next()
        if answer is Signal.NEED_MORE:
            sock.settimeout(_left(until))
            count = sock.recv_into(parser.buffer())
            if not count:
                raise ConnectionResetError("the server closed the connection")
            parser.received(count)
        elif not isinstance(answer, Push):
            return answer


def encode(command: tuple[str | bytes, ...]) -> bytes:
    """A command as RESP has it: an array of strings."""
    parts = [part.encode() if isinstance(part, str) else part for part in command]
    strings = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), strings)


def _left(until: float | None) -> float | None:
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no connection within the connect deadline"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}: check ca, or the name in the certificate"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}: is this a TLS port?"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
