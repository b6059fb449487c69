"""`stallscope exporter` as a sidecar runs it: says where it listens, serves, ends on a signal."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from runbooks.cli import exit_codes
from runbooks.cli.exporter import listen_address
from runbooks.cli.parser import UsageError
from tests.runbooks.command_line import COMMAND, environment, stallscope


@contextlib.contextmanager
def _exporter(*arguments):
    process = subprocess.Popen(
        [*COMMAND, "exporter", "--listen", "127.0.0.1:0", "--json", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["listening"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGTERM, exit_codes.OK), (signal.SIGINT, exit_codes.INTERRUPTED)],
)
def test_it_serves_until_a_signal(tmp_path, sent, code):
    with _exporter("--from", tmp_path, "--valkey", "127.0.0.1:1") as (process, url):
        deadline = time.monotonic() + 5
        body = b""
        while b"stallscope_source_up" not in body and time.monotonic() < deadline:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body = answer.read()
            time.sleep(0.05)
        assert b'stallscope_source_info{reason="empty_folder",source="pages"} 1.0' in body
        assert b'reason="connection_refused"' in body
        began = time.monotonic()
        process.send_signal(sent)
        assert process.wait(5) == code
        assert time.monotonic() - began < 3
        assert process.stderr is not None and process.stderr.read() == ""


def test_an_address_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = stallscope("exporter", "--from", tmp_path, "--listen", f"127.0.0.1:{port}")
    assert run.code == exit_codes.USAGE
    assert str(port) in run.line() and "--listen" in run.line()


def test_nothing_to_serve_is_one_line():
    run = stallscope("exporter")
    assert run.code == exit_codes.USAGE
    assert "--from" in run.line()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9477", ("127.0.0.1", 9477)),
        (":9477", ("0.0.0.0", 9477)),
        ("[::1]:9477", ("::1", 9477)),
    ],
)
def test_listen_addresses(text, address):
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "9477", "host:", "host:port", "host:70000", "host:-1"])
def test_what_is_no_listen_address(text):
    with pytest.raises(UsageError, match="--listen"):
        listen_address(text)
