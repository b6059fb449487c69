"""Whenever and however the lab is stopped, no process, port or file of it stays."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.lab.runs import LabRun, leftovers, start

pytest.importorskip("torch")
pytest.importorskip("lmcache")


def stopped(lab: LabRun, *signals: signal.Signals) -> int:
    for number in signals:
        lab.process.send_signal(number)
        time.sleep(0.05)
    lab.process.communicate(timeout=30)
    assert leftovers(lab) == []
    code = lab.process.returncode
    assert code is not None
    return code


@pytest.mark.parametrize("delay_seconds", [0.3, 1.0, 2.0, 3.5, 5.0])
def test_interrupted_while_starting(tmp_path: Path, delay_seconds: float) -> None:
    lab = start(tmp_path, "--ranks", "2", "--seconds", "60")
    time.sleep(delay_seconds)
    code = stopped(lab, signal.SIGINT)
    assert code in (130, -signal.SIGINT)  # before its handlers stand, Python's own


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT,), 130),
        ((signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGTERM,), 143),
        ((signal.SIGHUP,), 129),
        ((signal.SIGKILL,), -signal.SIGKILL),
    ],
)
def test_stopped_while_running(
    tmp_path: Path, signals: tuple[signal.Signals, ...], code: int
) -> None:
    lab = start(tmp_path, "--ranks", "2", "--seconds", "60")
    lab.wait_for(r"[1-9]\d* of 60 s")
    assert stopped(lab, *signals) == code


def test_a_killed_rank_ends_the_run_with_one_line(tmp_path: Path) -> None:
    import psutil

    lab = start(tmp_path, "--ranks", "2", "--seconds", "60")
    lab.wait_for(r"[1-9]\d* of 60 s")
    host = next(
        p for p in psutil.Process(lab.process.pid).children(recursive=True)
        if "lab.host" in p.cmdline()
    )  # fmt: skip
    workers = [p for p in host.children() if p.name()]
    workers[0].kill()
    lab.process.communicate(timeout=60)
    assert lab.process.returncode == 70
    last = lab.log.read_text().strip().splitlines()[-1]
    assert last.startswith("stallscope lab: ")
    assert "Traceback" not in lab.log.read_text()
    assert leftovers(lab) == []
