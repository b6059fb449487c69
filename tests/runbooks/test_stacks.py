"""`stallscope stacks` as a user runs it: which processes, what it says, how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporters.page_layout import SUFFIX
from exporters.readers.pages import PageFolder
from exporters.readers.stacks import of_pages
from runbooks.cli import exit_codes
from tests.exporters.stack_targets import target
from tests.runbooks import writer
from tests.runbooks.command_line import ROOT, environment, stallscope


def write_pages(folder: Path, rank: int, *before: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*before, sys.executable, "-m", writer.__name__, str(folder), str(rank), "2"],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def pages(tmp_path):
    processes = [write_pages(tmp_path, rank) for rank in range(2)]
    yield tmp_path, processes
    for process in processes:
        process.kill()
        process.wait()


def test_the_processes_of_a_folder_of_pages(pages):
    folder, processes = pages
    os.kill(processes[1].pid, signal.SIGSTOP)
    time.sleep(0.05)
    run = stallscope("stacks", "--from", folder)
    assert run.code == exit_codes.OK, run.out
    # Stopped within a turn of its loop or between two: one group of both ranks, or one each.
    assert re.search(r"^stallscope-heartbeat  rank", run.out, re.M)
    assert re.search(r"^MainThread  rank", run.out, re.M)
    assert f"rank 1 (pid {processes[1].pid}) is stopped" in run.out
    told = json.loads(stallscope("stacks", "--from", folder, "--json").out)
    assert told["schema"] == 1 and told["unseen"] == []
    assert [(p["pid"], p["rank"]) for p in told["processes"]] == [
        (process.pid, rank) for rank, process in enumerate(processes)
    ]
    assert {pid for group in told["groups"] for pid in group["pids"]} == {p.pid for p in processes}


def test_a_page_whose_process_ended_is_not_looked_for(pages):
    folder, processes = pages
    processes[1].kill()
    processes[1].wait()
    told = json.loads(stallscope("stacks", "--from", folder, "--json").out)
    assert [p["rank"] for p in told["processes"]] == [0]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_process_of_another_pid_namespace_is_found_by_its_page(tmp_path):
    allowed = subprocess.run(["unshare", "-pf", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("no new PID namespace may be made here")
    outer = write_pages(tmp_path, 0, "unshare", "--pid", "--fork", "--kill-child")
    try:
        folder = PageFolder(tmp_path)
        sample = folder.read(time.monotonic_ns())
        folder.close()
        [process] = [page.process for page in sample.pages]
        assert process.pid == 1  # as it sees itself
        [target], unseen = of_pages([process], tmp_path)
        assert unseen == ()
        assert Path(f"/proc/{target.pid}/stat").read_text().split()[3] == str(outer.pid)
        told = json.loads(stallscope("stacks", "--from", tmp_path, "--json").out)
        assert [p["pid"] for p in told["processes"]] == [target.pid]
    finally:
        outer.kill()
        outer.wait()


def test_a_page_of_a_process_out_of_sight_is_unseen(pages):
    """Its number is another process here, as in a sidecar with its own PID namespace."""
    folder, _ = pages
    reader = PageFolder(folder)
    sample = reader.read(time.monotonic_ns())
    reader.close()
    [first] = [p.process for p in sample.pages if p.process.rank == 0]
    [name] = [n for n in os.listdir(folder) if n.endswith(SUFFIX) and n == first.page]
    (folder / "copy").write_bytes((folder / name).read_bytes())
    (folder / "copy").replace(folder / name)  # a file that nobody has mapped
    targets, unseen = of_pages([first], folder)
    assert targets == ()
    assert [u.reason for u in unseen] == ["no_process"]
    assert "shareProcessNamespace" in unseen[0].mend


def test_by_number_and_with_calls_of_c():
    with target("native") as process:
        run = stallscope("stacks", "--pid", str(process.pid))
        assert run.code == exit_codes.OK
        assert re.search(r"into_c +\S*native\.py:\d+", run.out)
        told = json.loads(stallscope("stacks", "--pid", str(process.pid), "--native", "--json").out)
        [stack] = told["processes"]
        assert any("libc" in frame["file"] for frame in stack["threads"][0]["frames"])


def test_what_is_unseen_has_its_code_and_mend():
    run = stallscope("stacks", "--pid", "4194000")
    assert run.code == exit_codes.UNSEEN
    assert "has ended" in run.line()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pid", "x"], "no process id"),
        (["--pid", "-1"], "no process id"),
        (["--pid", "0"], "no process id"),
        (["--timeout", "0"], "no time"),
        (["--timeout", "nan"], "no time"),
        (["--pid", "1", "--from", "/tmp"], "leave one out"),
        (["--from", "http://x"], "http://x"),
        (["--from", "redis://x:1"], "Valkey"),
        (["--from", ""], "no name"),
        (["--nonblocking"], "there is no --nonblocking"),
    ],
)
def test_usage_is_one_line(arguments, says):
    run = stallscope("stacks", *arguments)
    assert run.code == exit_codes.USAGE
    assert says in run.line()


def test_a_folder_without_pages_is_unseen(tmp_path):
    run = stallscope("stacks", "--from", tmp_path)
    assert run.code == exit_codes.UNSEEN
    assert "no page in" in run.out


def test_a_pipe_has_no_colour_and_a_reader_that_left_is_no_fault():
    with target("waiting") as process:
        run = stallscope("stacks", "--pid", str(process.pid), COLUMNS="200")
        assert "\x1b" not in run.out
        command = f"{sys.executable} -m runbooks.cli.main stacks --pid {process.pid} | head -1"
        piped = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (piped.returncode, piped.stderr) == (0, "")
