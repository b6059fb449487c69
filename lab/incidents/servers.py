"""What incidents at a shard share: talking to the server of a pid, as any of its clients can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis


def client_of(pid: int) -> redis.Redis:
    """A connection to the server that runs under this pid, at the address of its command line."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    host, _, port = title.split()[-1].rpartition(":")  # Valkey writes "PROGRAM HOST:PORT" there
    return redis.Redis(host=host, port=int(port), socket_timeout=5.0, retry=Retry(NoBackoff(), 0))
