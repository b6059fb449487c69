"""A real server killed, frozen, out of memory or cutting connections: no wrong byte, no leak, and
service back within 2 s of the server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from patched_engine.resp import Deadlines, KeyResult, Outcome, RespClient
from tests.patched_engine.resp.conftest import MakeClient
from tests.patched_engine.resp.real_servers import RealServer, real_server

KEYS = 24
SIZE_BYTES = 400_000
BACK_SECONDS = 2.0
DEADLINES = Deadlines(connect_seconds=0.5, operation_seconds=1.0, total_seconds=2.0)
POISON = 0xEE


def value(index: int) -> bytes:
    """A value that no part of another could be taken for."""
    return b"".join(b"%04d-%011d" % (index, at) for at in range(0, SIZE_BYTES, 16))


VALUES = [value(index) for index in range(KEYS)]
NAMES = [f"chaos {index}" for index in range(KEYS)]


class Load:
    """GETs of every key from two threads, each buffer poisoned before and compared after."""

    def __init__(self, client: RespClient) -> None:
        self._client = client
        self._stop = threading.Event()
        self.wrong: list[str] = []
        self.outcomes: set[Outcome] = set()
        self.last_good = 0.0
        self.longest_seconds = 0.0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(2)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads), "a call hangs"

    def _run(self) -> None:
        buffers = [bytearray(SIZE_BYTES) for _ in NAMES]
        while not self._stop.is_set():
            for buffer in buffers:
                buffer[::4096] = bytes([POISON]) * len(buffer[::4096])
            begin = time.monotonic()
            results = self._client.get(NAMES, buffers)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - begin)
            for name, result, buffer, wanted in zip(NAMES, results, buffers, VALUES, strict=True):
                if result.ok and buffer != wanted:
                    self.wrong.append(f"{name}: {buffer[:32]!r}")
            self.outcomes |= {result.outcome for result in results}
            if all(result.ok for result in results):
                self.last_good = time.monotonic()

    def wait_for_good(self, since: float) -> float:
        """Seconds from `since` to the first whole batch of values after it."""
        begin = time.monotonic()
        while self.last_good <= since:
            assert time.monotonic() - begin < 15, self.outcomes
            time.sleep(0.005)
        return self.last_good - since


@contextlib.contextmanager
def under_load(
    make_client: MakeClient, folder: Path, *options: str
) -> Iterator[tuple[RealServer, RespClient, Load]]:
    with real_server("valkey 9.1.2", folder, *options) as server:
        client = make_client(server.url, connections=4, deadlines=DEADLINES)
        assert all(r.ok for r in client.set(NAMES, VALUES))
        with Load(client) as load:
            load.wait_for_good(0.0)
            yield server, client, load
        client.close()
        assert load.wrong == []
        assert load.longest_seconds < 3.5


@pytest.mark.usefixtures("nothing_leaks")
def test_killed_and_started_again(make_client: MakeClient, tmp_path: Path) -> None:
    with under_load(make_client, tmp_path) as (server, client, load):
        for pause_seconds in (0.0, 1.7):  # before and after the pauses have grown to their longest
            server.kill()
            time.sleep(pause_seconds)
            server.start()
            back = time.monotonic()
            # An empty server: misses until the keys are stored again, which must work at once.
            while not all(r.ok for r in client.set(NAMES, VALUES)):
                assert time.monotonic() - back < BACK_SECONDS
                time.sleep(0.01)
            assert load.wait_for_good(back) < BACK_SECONDS
        assert load.outcomes >= {Outcome.VALUE, Outcome.UNREACHABLE}
        assert load.outcomes <= {
            Outcome.VALUE,
            Outcome.MISS,
            Outcome.LOST,
            Outcome.UNREACHABLE,
        }


@pytest.mark.usefixtures("nothing_leaks")
def test_frozen_for_five_seconds(tmp_path: Path) -> None:
    clients: list[RespClient] = []

    def make(url: str, **options: Any) -> RespClient:
        clients.append(RespClient(url, engine="auto", **options))
        return clients[-1]

    # Both engines through the same five seconds.
    with under_load(make, tmp_path) as (server, _client, load):
        with (
            RespClient(server.url, connections=4, deadlines=DEADLINES, engine="pure") as pure,
            Load(pure) as pure_load,
        ):
            pure_load.wait_for_good(0.0)
            with server.stopped():
                time.sleep(5)
            back = time.monotonic()
            for each in (load, pure_load):
                assert each.wait_for_good(back) < BACK_SECONDS
                assert Outcome.DEADLINE in each.outcomes
        assert pure_load.wrong == []
        assert pure_load.longest_seconds < 3.5


@pytest.mark.usefixtures("nothing_leaks")
def test_connections_killed_at_the_server(make_client: MakeClient, tmp_path: Path) -> None:
    with under_load(make_client, tmp_path) as (server, _client, load):
        with redis.Redis(port=server.port) as admin:
            for _ in range(20):
                for connection in admin.client_list(_type="normal"):
                    if connection["cmd"] in ("get", "set"):
                        with contextlib.suppress(redis.ResponseError):
                            admin.client_kill_filter(_id=connection["id"])
                time.sleep(0.03)
        assert load.wait_for_good(time.monotonic()) < BACK_SECONDS
        assert load.outcomes <= {Outcome.VALUE, Outcome.LOST}


@pytest.mark.usefixtures("nothing_leaks")
def test_out_of_memory(make_client: MakeClient, tmp_path: Path) -> None:
    options = ("--maxmemory-policy", "noeviction")
    with under_load(make_client, tmp_path, *options) as (server, client, load):
        with redis.Redis(port=server.port) as admin:
            admin.config_set("maxmemory", "5mb")
            results: list[KeyResult] = client.set(["more 1", "more 2"], VALUES[:2])
            assert [(r.outcome, r.code) for r in results] == [(Outcome.REFUSED, "OOM")] * 2
            assert client.exists(["more 1", NAMES[0]])[1].ok
            admin.config_set("maxmemory", "0")
        back = time.monotonic()
        assert all(r.ok for r in client.set(["more 1", "more 2"], VALUES[:2]))
        assert load.wait_for_good(back) < BACK_SECONDS
        assert load.outcomes == {Outcome.VALUE}
