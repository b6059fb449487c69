"""More scrapes than can be rendered, and requests that are none: nobody else is harmed."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from exporters import server as server_module
from exporters.server import MOST_RENDERING, STALE_AFTER_SECONDS, MetricsServer, TickCollector
from exporters.snapshot import Evaluation, Snapshot
from exporters.ticker import Tick


class _Fixed:
    """A ticker whose last tick a test sets."""

    def __init__(self):
        self.tick = None

    def set(self, age_seconds):
        empty = Evaluation(Snapshot(0.0, 0.0), (), ())
        self.tick = Tick(1, empty, time.monotonic() - age_seconds, 0.1)

    def latest(self):
        return self.tick


@contextlib.contextmanager
def _serving():
    ticker = _Fixed()
    server = MetricsServer(ticker, Path("/pages"), "127.0.0.1", 0)
    server.start()
    try:
        yield ticker, "http://{}:{}".format(*server.address)
    finally:
        server.stop()


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def test_it_is_ready_while_ticks_end():
    with _serving() as (ticker, url):
        assert _status(f"{url}/-/ready")[0] == 503
        ticker.set(age_seconds=0.0)
        assert _status(f"{url}/-/ready")[0] == 200
        ticker.set(age_seconds=STALE_AFTER_SECONDS + 1)
        assert _status(f"{url}/-/ready")[0] == 503
        assert _status(f"{url}/-/healthy")[0] == 200


def test_scrapes_beyond_those_rendered_are_told_to_come_again(monkeypatch):
    go_on = threading.Event()
    rendering = threading.Semaphore(0)

    def held(self):
        rendering.release()
        go_on.wait(10)
        yield from ()

    with _serving() as (_, url):
        monkeypatch.setattr(TickCollector, "collect", held)
        monkeypatch.setattr(server_module, "TURN_WAIT_SECONDS", 0.1)
        statuses = []
        threads = [
            threading.Thread(target=lambda: statuses.append(_status(f"{url}/metrics")[0]))
            for _ in range(MOST_RENDERING)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert rendering.acquire(timeout=5)
        code, headers = _status(f"{url}/metrics")
        assert code == 503 and int(headers["Retry-After"]) > 0
        assert _status(f"{url}/-/healthy")[0] == 200
        go_on.set()
        for thread in threads:
            thread.join()
        assert statuses == [200] * MOST_RENDERING
        assert _status(f"{url}/metrics")[0] == 200


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET /metrics"],
    ids=["a line of 1 MB", "no HTTP", "half a request"],
)
def test_a_request_that_is_none_harms_nobody(request_bytes, capfd):
    with _serving() as (_, url):
        before = threading.active_count()
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request_bytes)
            assert _status(f"{url}/metrics")[0] == 200
        deadline = time.monotonic() + 5
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert threading.active_count() <= before
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_reset_their_connection_print_nothing(capfd):
    with _serving() as (_, url):
        port = int(url.rpartition(":")[2])
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                # A close that resets: the refusal of so long a line finds nobody.
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                with contextlib.suppress(OSError):
                    connection.sendall(b"GET /" + b"x" * (1 << 17))
        assert _status(f"{url}/metrics")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_thousand_scrapes_at_once_leave_nothing_behind():
    statuses = []
    with _serving() as (ticker, url):
        ticker.set(age_seconds=0.0)
        assert _status(f"{url}/metrics")[0] == 200
        before = _descriptors(), threading.active_count()
        scrapes = [
            threading.Thread(target=lambda: statuses.append(_status(f"{url}/metrics")[0]))
            for _ in range(1000)
        ]
        for scrape in scrapes:
            scrape.start()
        for scrape in scrapes:
            scrape.join()
        deadline = time.monotonic() + 10
        while (_descriptors(), threading.active_count()) > before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (_descriptors(), threading.active_count()) <= before
    assert len(statuses) == 1000 and set(statuses) <= {200, 503} and 200 in statuses


def _descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))
