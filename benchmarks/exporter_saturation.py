"""Loads a real server with GETs of 12.4 MB and asks its kernel what its main thread did."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from benchmarks.report import QUICK
from exporters.readers.valkey import Shards
from exporters.saturation import Saturation, between
from exporters.snapshot import Shard
from tests.patched_engine.resp.real_servers import real_server

VALUE_BYTES = 12_400_000
SECONDS = 1.5 if QUICK else 8.0
SETTLE_SECONDS = 0.3 if QUICK else 1.0
# Name, clients, and how long a client thinks between two GETs.
LEVELS = (
    ("idle", 0, 0.0),
    ("light", 1, 0.2),
    ("half", 1, 0.02),
    ("one client", 1, 0.0),
    ("heavy", 4, 0.0),
)
SERVERS = (
    ("valkey 9.1.2", 1),
    ("valkey 9.0.0", 1),
    ("redis 7.0.15", 1),
    ("valkey 9.1.2", 4),
    ("valkey 9.0.0", 4),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Shares of wall time at one load: what we say, and what the kernel says."""

    server: str
    io_threads: int
    level: str
    gets_per_second: float
    said: Saturation
    ran: float
    waited: float

    @property
    def truth(self) -> float:
        """Share in which the main thread ran or was ready to."""
        return self.ran + self.waited

    @property
    def outside(self) -> float:
        """How far the truth lies from the interval; 0 within."""
        return max(0.0, self.said.lower - self.truth, self.truth - self.said.upper)


def measure(kind: str, io_threads: int) -> list[Figure] | str:
    """One server at all levels, idle first; the reason where there is no such server here."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _measure(kind, io_threads, Path(folder))
    except pytest.skip.Exception as missing:
        return str(missing)


def _measure(kind: str, io_threads: int, folder: Path) -> list[Figure]:
    figures = []
    with real_server(kind, folder, "--io-threads", str(io_threads)) as server:
        with redis.Redis(port=server.port) as client:
            client.set("v", b"x" * VALUE_BYTES)
        assert server.process is not None
        shards = Shards([server.url])
        for level, clients, think_seconds in LEVELS:
            with _load(server.port, clients, think_seconds):
                time.sleep(SETTLE_SECONDS)
                figures.append(_figure(shards, server.process.pid, kind, io_threads, level))
        shards.close()
    return figures


def _figure(shards: Shards, pid: int, kind: str, io_threads: int, level: str) -> Figure:
    before, spent_before, at_before = _look(shards, pid)
    time.sleep(SECONDS)
    after, spent_after, at_after = _look(shards, pid)
    said = between(before, after)
    if said is None:
        raise RuntimeError(f"{kind}, {level}: nothing can be said of it")
    wall = at_after - at_before
    ran, waited = ((b - a) / wall for a, b in zip(spent_before, spent_after, strict=True))
    gets = (_gets(after) - _gets(before)) / said.wall_seconds
    return Figure(kind, io_threads, level, gets, said, ran, waited)


def _look(shards: Shards, pid: int) -> tuple[Shard, tuple[float, float], float]:
    """A fresh answer, with the kernel's account of the same moment."""
    asked_seconds = time.monotonic()
    while True:
        [shard], unseen = shards.read(shards.begin())
        if unseen:
            raise RuntimeError(str(unseen))
        if shard.read_seconds >= asked_seconds:
            break
    run_ns, wait_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return shard, (int(run_ns) / 1e9, int(wait_ns) / 1e9), time.monotonic()


def _gets(shard: Shard) -> float:
    told = shard.info.get("cmdstat_get")
    return float(told["calls"]) if isinstance(told, dict) else 0.0


@contextlib.contextmanager
def _load(port: int, clients: int, think_seconds: float) -> Iterator[None]:
    stop = threading.Event()

    def get() -> None:
        buffer = bytearray(1 << 20)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while not stop.wait(think_seconds):
                connection.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nv\r\n")
                left = len(f"${VALUE_BYTES}\r\n") + VALUE_BYTES + 2
                while left and (count := connection.recv_into(buffer, min(left, len(buffer)))):
                    left -= count

    threads = [threading.Thread(target=get) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
