"""Real Valkey servers, one a rank: they differ in their loopback address alone, as {rank} needs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from lab.valkey import RANK_HOST, free_port, rank_hosts
from tests.servers import valkey_binary


class Shards:
    """W shards on one port; `url` is what an engine is given."""

    def __init__(self, count: int, *options: str) -> None:
        self.hosts = rank_hosts(count)
        self._options = options
        self._binary = valkey_binary()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.port = free_port(self.hosts)
        self.url = f"resp://{RANK_HOST}:{self.port}"

    def start(self, index: int) -> bool:
        """Whether it came up; another process may have taken the port meanwhile."""
        process = subprocess.Popen(
            [
                *(self._binary, "--port", str(self.port), "--bind", self.hosts[index]),
                *("--save", "", "--appendonly", "no", *self._options),
            ],
            stdout=subprocess.DEVNULL,
        )
        self._processes[index] = process
        deadline = time.monotonic() + 10
        with self.client(index) as client:
            while time.monotonic() < deadline and process.poll() is None:
                with contextlib.suppress(redis.RedisError):
                    info: Any = client.info("server")
                    return int(info["process_id"]) == process.pid
                time.sleep(0.02)
        return False

    def stop(self, index: int) -> None:
        process = self._processes.pop(index)
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def frozen(self, index: int) -> Iterator[None]:
        pid = self._processes[index].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def client(self, index: int) -> redis.Redis:
        return redis.Redis(host=self.hosts[index], port=self.port, socket_timeout=2.0)

    def names(self, index: int) -> set[str]:
        """The chunks of one shard."""
        with self.client(index) as client:
            found: Any = client.keys("*@*")
        return {name.decode() for name in found}

    def gets(self, index: int) -> int:
        """GETs that this shard was asked so far."""
        with self.client(index) as client:
            stats: Any = client.info("commandstats")
        return int(stats.get("cmdstat_get", {"calls": 0})["calls"])

    def end(self) -> None:
        for index in list(self._processes):
            self.stop(index)


@contextlib.contextmanager
def shards(count: int, *options: str) -> Iterator[Shards]:
    for _ in range(8):
        made = Shards(count, *options)
        try:
            if all(made.start(index) for index in range(count)):
                yield made
                return
        finally:
            made.end()
    pytest.fail("no free port for the shards")
