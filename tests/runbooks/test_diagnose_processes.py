"""Diagnose against the real page writer in real processes: running, stopped, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

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
