"""`diagnose --watch`: a terminal that is given back, blocks and JSON lines when piped, its cost."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest

from runbooks.cli import exit_codes
from runbooks.cli.watch import _end_of
from tests.runbooks.command_line import COMMAND, environment
from tests.runbooks.pages import add_stores, lockstep, pages

ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


@pytest.fixture
def late_rank(tmp_path):
    """The pages of an engine whose rank 2 is late."""
    workers = lockstep(4, late_rank=2)
    add_stores(workers, only_rank=None)
    with pages(tmp_path, workers):
        yield tmp_path


@contextmanager
def _piped(folder, *arguments):
    with subprocess.Popen(
        [*COMMAND, "diagnose", "--from", str(folder), "--watch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _on_terminal(folder, stop_signal: int, seconds: float, **changes: str) -> tuple[int, bytes]:
    """Watch on a terminal of 80 by 24, then end it; the exit code and all that was written."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "diagnose", "--from", str(folder), "--watch"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environment(TERM="xterm-256color", COLUMNS="80", LINES="24", **changes),
    )
    os.close(theirs)
    written = b""
    ends = time.monotonic() + seconds
    signalled = False
    while True:
        if not signalled and time.monotonic() >= ends:
            os.kill(process.pid, stop_signal)
            signalled = True
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(timeout=10), written


def test_json_lines_one_a_second(late_rank):
    with _piped(late_rank, "--json") as process:
        first = json.loads(process.stdout.readline())
        began = time.monotonic()
        second = json.loads(process.stdout.readline())
        assert 0.5 < time.monotonic() - began < 2.0
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == exit_codes.INTERRUPTED
        assert process.stderr.read() == ""
    assert [finding["id"] for finding in first["findings"]] == ["straggler-rank"]
    assert second["unix_seconds"] > first["unix_seconds"]


def test_a_long_path_keeps_its_end():
    assert _end_of("/dev/shm/stallscope", 40) == "/dev/shm/stallscope"
    assert _end_of("/a/rather/long/path/to/pages", 12) == ".../to/pages"
    assert _end_of("/a/long/path", 0) == "...h"


def test_blocks_when_piped(late_rank):
    with _piped(late_rank) as process:
        lines = [process.stdout.readline().rstrip("\n") for _ in range(20)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == exit_codes.INTERRUPTED
    text = "\n".join(lines)
    assert lines[0].startswith("stallscope  ")
    assert "straggler-rank, rank 2" in text
    assert "makes others wait" in text
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 80


def test_a_closed_pipe_ends_it_with_the_last_answer(late_rank):
    line = " ".join([*COMMAND, "diagnose --watch --json --from", str(late_rank), "| head -n 1"])
    run = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=15,
        check=False,
    )
    assert run.stderr == ""
    assert run.returncode == exit_codes.CRITICAL
    assert len(run.stdout.splitlines()) == 1


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_the_terminal_is_given_back_with_the_last_answer_on_it(late_rank, stop_signal):
    code, written = _on_terminal(late_rank, stop_signal, seconds=2.5)
    assert code == exit_codes.INTERRUPTED
    assert written.index(ENTER_SCREEN) < written.index(LEAVE_SCREEN)
    assert written.rindex(HIDE_CURSOR) < written.rindex(SHOW_CURSOR)
    assert b"Traceback" not in written
    # 80 by 24 has no room for the evidence, but for every finding and every rank.
    assert b"makes others wait" in written
    assert re.search(rb"\n +3 +\d+ ", written)
    after = written[written.index(LEAVE_SCREEN) :].decode()
    assert "straggler-rank, rank 2" in after


def test_no_color_on_a_terminal(late_rank):
    _, written = _on_terminal(late_rank, signal.SIGINT, seconds=1.5, NO_COLOR="1")
    assert b"straggler-rank" in written
    assert b"\x1b[1;31m" not in written


def test_what_appears_later_is_shown(tmp_path):
    folder = tmp_path / "pages"
    workers = lockstep(4, late_rank=2)
    with _piped(folder, "--json") as process:
        first = json.loads(process.stdout.readline())
        with pages(folder, workers):
            deadline = time.monotonic() + 5
            found = False
            while not found and time.monotonic() < deadline:
                found = bool(json.loads(process.stdout.readline())["findings"])
        process.send_signal(signal.SIGINT)
    assert first["unseen"][0]["reason"] == "missing_folder"
    assert found


def test_it_takes_at_most_2_percent_of_a_core(late_rank):
    ticks_a_second = os.sysconf("SC_CLK_TCK")

    def cpu_seconds(pid: int) -> float:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks_a_second

    with _piped(late_rank, "--json") as process:
        process.stdout.readline()
        process.stdout.readline()
        began, used = time.monotonic(), cpu_seconds(process.pid)
        for _ in range(6):
            process.stdout.readline()
        share = (cpu_seconds(process.pid) - used) / (time.monotonic() - began)
        process.send_signal(signal.SIGINT)
    # One clock tick in six seconds is what /proc can resolve.
    assert share <= 0.02 + 1 / ticks_a_second / 6
