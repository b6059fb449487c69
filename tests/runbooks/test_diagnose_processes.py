"""Diagnose against the real page writer in real processes: running, stopped, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from exporters import reasons
from lab.valkey import find_server
from runbooks.cli import exit_codes
from tests.runbooks.command_line import environment, stallscope

NAMED_WITHIN_SECONDS = 5.0
RANKS = 3


@pytest.fixture
def writers(tmp_path):
    """RANKS processes that write pages into tmp_path."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runbooks.writer", str(tmp_path), str(rank), str(RANKS)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def _wait_for_finding(folder, seconds: float) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while True:
        run = stallscope("diagnose", "--from", folder, "--json")
        findings = json.loads(run.out)["findings"]
        if findings:
            assert run.code == exit_codes.CRITICAL
            return findings[0]
        assert time.monotonic() < deadline, "no finding in time"
        time.sleep(0.2)


@pytest.fixture
def valkey():
    """A real server that wants a password: (process, URL with it, URL without)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            find_server(""),
            *("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "secret"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.05)
    try:
        yield process, f"redis://:secret@127.0.0.1:{port}", f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_running_shard_is_seen(valkey):
    _, url, shown = valkey
    run = stallscope("diagnose", "--valkey", url)
    assert run.code == exit_codes.OK
    assert run.line().startswith("nothing found  1 shard; ranks were not asked for")
    assert stallscope("diagnose", "--valkey", shown).code == exit_codes.UNSEEN


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(signal.SIGSTOP, reasons.TIMEOUT), (signal.SIGKILL, reasons.CONNECTION_REFUSED)],
)
def test_a_stopped_or_dead_shard_is_one_line_in_time(valkey, sent, reason):
    process, url, shown = valkey
    os.kill(process.pid, sent)
    run = stallscope("diagnose", "--valkey", url)
    assert (run.code, run.seconds < 3.0) == (exit_codes.UNSEEN, True)
    assert shown in run.line()
    data = json.loads(stallscope("diagnose", "--valkey", url, "--json").out)
    assert [unseen["reason"] for unseen in data["unseen"]] == [reason]


def test_running_writers_are_seen_and_nothing_is_found(writers, tmp_path):
    time.sleep(1.0)
    data = json.loads(stallscope("diagnose", "--from", tmp_path, "--json").out)
    assert data["findings"] == []
    assert data["seen"]["ranks"] == RANKS


@pytest.mark.parametrize(("sent", "state"), [(signal.SIGSTOP, "frozen"), (signal.SIGKILL, "dead")])
def test_a_stopped_or_killed_rank_is_named_in_time(writers, tmp_path, sent, state):
    time.sleep(1.0)
    os.kill(writers[1].pid, sent)
    finding = _wait_for_finding(tmp_path, NAMED_WITHIN_SECONDS)
    assert (finding["id"], finding["rank"]) == ("rank-silent", 1)
    assert state in finding["summary"]
    assert str(writers[1].pid) in finding["next"]


def test_a_page_cut_short_by_another_process_is_one_line(writers, tmp_path):
    time.sleep(0.5)
    page = sorted(tmp_path.glob("*.page"))[0]
    os.truncate(page, page.stat().st_size // 2)
    run = stallscope("diagnose", "--from", tmp_path, "--json")
    assert run.code == exit_codes.UNSEEN
    data = json.loads(run.out)
    assert [u["source"] for u in data["unseen"] if u["reason"] == "truncated"] == [page.name]
