"""`stallscope trace --capture` against a server with vLLM's two hooks, and against its faults."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from runbooks.cli import exit_codes
from tests.runbooks.command_line import COMMAND, environment, stallscope


@contextmanager
def engine(codes: dict[str, list[int]] | None = None) -> Iterator[tuple[str, list[str]]]:
    """The URL, and the hooks called so far; `codes` are answers other than 200, in order."""
    called: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            called.append(self.path)
            left = (codes or {}).get(self.path, [])
            self.send_response(left.pop(0) if left else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", called
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_start_a_window_and_stop() -> None:
    with engine() as (url, called):
        out = stallscope("trace", "--capture", url, "--seconds", "0.3")
        assert called == ["/start_profile", "/stop_profile"]
    assert out.code == exit_codes.OK
    assert "captured 0.3 s" in out.line()
    assert out.seconds > 0.3


def test_an_engine_without_a_profiler_says_how_to_have_one() -> None:
    with engine({"/start_profile": [404]}) as (url, called):
        out = stallscope("trace", "--capture", url, "--seconds", "0.1")
        assert called == ["/start_profile"]
    assert out.code == exit_codes.UNSEEN
    assert "--profiler-config" in out.line()


def test_a_stop_that_fails_is_tried_again() -> None:
    with engine({"/stop_profile": [500, 500]}) as (url, called):
        out = stallscope("trace", "--capture", url, "--seconds", "0.1", "--json")
        assert called == ["/start_profile", *["/stop_profile"] * 3]
    assert out.code == exit_codes.OK
    assert json.loads(out.out)["failure"] == ""


def test_a_profiler_that_cannot_be_stopped_is_told() -> None:
    with engine({"/stop_profile": [500] * 9}) as (url, _):
        out = stallscope("trace", "--capture", url, "--seconds", "0.1")
    assert out.code == exit_codes.UNSEEN
    assert "may still run" in out.line()


def test_nobody_there() -> None:
    out = stallscope("trace", "--capture", "http://user:secret@127.0.0.1:9", "--seconds", "0.1")
    assert out.code == exit_codes.UNSEEN
    assert "secret" not in out.out + out.err
    assert "refused" in out.line()


def test_an_interrupt_stops_the_profiler_first() -> None:
    with engine() as (url, called):
        run = subprocess.Popen(
            [*COMMAND, "trace", "--capture", url, "--seconds", "60"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + 20
            while not called and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.2)
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=20) == exit_codes.INTERRUPTED
        finally:
            run.kill()
            run.communicate()
        assert called == ["/start_profile", "/stop_profile"]
