"""A connection to one shard, and what an error of it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from exporters import reasons
from exporters.readers.shard_access import Access
from exporters.readers.shard_url import ShardUrl

if TYPE_CHECKING:
    import redis

ASK_TIMEOUT_SECONDS: Final = 1.0

MENDS: Final[Mapping[str, str]] = {
    reasons.CONNECTION_REFUSED: "start the server, or correct the port",
    reasons.UNREACHABLE: "check the host name and the network",
    reasons.TIMEOUT: "look at that host: the server is frozen, overloaded or cut off",
    reasons.AUTH: "give a user that may run PING and INFO",
    reasons.NOT_VALKEY: "something else listens there: correct the URL",
    reasons.SENTINEL: "give the URL of the server that it watches",
    reasons.CLUSTER: "LMCache needs plain servers, one a rank: give those",
}


DETAILS: Final[Mapping[str, str]] = {
    reasons.CONNECTION_REFUSED: "nothing listens there",
    reasons.UNREACHABLE: "cannot be reached",
    reasons.TIMEOUT: f"no answer within {ASK_TIMEOUT_SECONDS:g} s",
    reasons.AUTH: "refuses our credentials or our commands",
    reasons.NOT_VALKEY: "does not answer as Valkey does",
    reasons.SENTINEL: "is a Sentinel: it holds no keys and has no main thread to watch",
    reasons.CLUSTER: "is a node of a cluster, whose keys move between nodes",
}


def reason_of(error: Exception) -> str:
    """The enumerated reason of a client library's error."""
    import redis

    exceptions = redis.exceptions
    if isinstance(error, exceptions.TimeoutError):
        return reasons.TIMEOUT
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return reasons.AUTH
    if isinstance(error, exceptions.ResponseError):
        text = str(error)
        if text.startswith("LOADING") or "max number of clients" in text:
            return reasons.UNREACHABLE  # Valkey, but not for us now
        return reasons.AUTH if text.startswith(("NOAUTH", "WRONGPASS")) else reasons.NOT_VALKEY
    if isinstance(error, exceptions.InvalidResponse):
        return reasons.NOT_VALKEY
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 8:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return reasons.CONNECTION_REFUSED
    if any(isinstance(e, TimeoutError) for e in chain):
        return reasons.TIMEOUT
    if any(isinstance(e, exceptions.InvalidResponse) for e in chain):
        return reasons.NOT_VALKEY
    # Without an error of the network it was what came back that the client could not take,
    # unless the server just hung up (it is full, or wants TLS).
    hung_up = any(isinstance(e, OSError) for e in chain) or "closed" in str(error).lower()
    return reasons.UNREACHABLE if hung_up else reasons.NOT_VALKEY


def connect(url: ShardUrl, access: Access, name: str | None) -> redis.Redis:
    """A client of one connection that tries once: the next tick is the retry."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    is_named = url.username is not None or url.password is not None
    shared: dict[str, object] = {
        "username": url.username if is_named else access.username,
        "password": url.password if is_named else access.password,
        "socket_timeout": ASK_TIMEOUT_SECONDS,
        "socket_connect_timeout": ASK_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": name,
        "max_connections": 1,
    }
    if url.unix_path:
        return redis.Redis(unix_socket_path=url.unix_path, **shared)  # type: ignore[arg-type]
    if url.tls:
        shared |= {"ssl": True, "ssl_ca_certs": access.ca_file or None}
    return redis.Redis(host=url.host, port=url.port, **shared)  # type: ignore[arg-type]
