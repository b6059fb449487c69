"""A real Valkey with the options that a deployment gives it, at a port of ours."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence

import redis

from lab.valkey import find_server
from tests.servers import free_port

_SECONDS = 10


@contextlib.contextmanager
def started(options: Sequence[str], password: str | None = None) -> Iterator[redis.Redis]:
    """Yields a client once it answers; fails where the server does not take its options."""
    port = free_port()
    given = [find_server(""), *options, "--port", str(port), "--bind", "127.0.0.1"]
    server = subprocess.Popen(given, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port, password=password)
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.05)
        yield client
    finally:
        server.kill()
        server.wait()
