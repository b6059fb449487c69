"""Whatever stops a run, at whatever moment, no process, port or file stays."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.helpers import assert_nothing_left, command, environment, processes_of

RUN = ("run", "--ranks", "2", "--seconds", "30")


def start(temporary: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(*RUN),
        env=environment(temporary),
        cwd=temporary.parent,
        stdout=subprocess.DEVNULL,
        stderr=(temporary.parent / "said").open("wb"),
        start_new_session=True,  # the signal is for the lab alone
    )


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    return folder


# From before the first import to the middle of the run: servers, the fork, gloo, the engines.
@pytest.mark.parametrize("after_seconds", [0.0, 0.3, 0.6, 1.0, 2.0, 3.5, 5.0, 9.0])
def test_ctrl_c_at_any_moment(temporary: Path, after_seconds: float) -> None:
    lab = start(temporary)
    time.sleep(after_seconds)
    lab.send_signal(signal.SIGINT)
    code = lab.wait(timeout=20)
    # Before Python has its own handler in place the signal simply ends it.
    said = (temporary.parent / "said").read_text()
    assert code in (130, -signal.SIGINT, 1), said
    assert_nothing_left(temporary)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals(temporary: Path, number: signal.Signals) -> None:
    lab = start(temporary)
    time.sleep(4)
    lab.send_signal(number)
    assert lab.wait(timeout=20) == 128 + number
    assert_nothing_left(temporary)


def test_an_impatient_second_ctrl_c(temporary: Path) -> None:
    lab = start(temporary)
    time.sleep(6)
    for _ in range(4):
        lab.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert lab.wait(timeout=20) == 130
    assert_nothing_left(temporary)


@pytest.mark.parametrize("after_seconds", [1.0, 2.5, 7.0])
def test_kill_of_the_parent(temporary: Path, after_seconds: float) -> None:
    lab = start(temporary)
    time.sleep(after_seconds)
    assert processes_of(temporary)
    os.kill(lab.pid, signal.SIGKILL)
    lab.wait(timeout=20)
    assert_nothing_left(temporary)


def test_a_closed_terminal_group(temporary: Path) -> None:
    """Ctrl-C as a terminal sends it: to the whole foreground group."""
    lab = start(temporary)
    time.sleep(5)
    os.killpg(lab.pid, signal.SIGINT)
    assert lab.wait(timeout=20) == 130
    assert_nothing_left(temporary)
