"""How often the stock client loses a completion by itself (upstream #5547), and how rarely in the
lab."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from tests.lab.soak import results
from tests.lab.soak.poisson import calls_per_loss
from tests.runbooks.command_line import ROOT, environment
from tests.servers import valkey_server

pytest.importorskip("lmcache")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
COMMAND = "python -m pytest -q -s -m soak tests/lab/soak/test_losses.py"
PROGRAM = "tests.lab.soak.loss_rate"
SECONDS = 45


def test_the_interval_is_the_textbook_one() -> None:
    estimate, low, high = calls_per_loss(1000, 10)  # 10 events: [4.795, 18.39]
    assert estimate == 100
    assert (low, high) == pytest.approx((1000 / 18.390, 1000 / 4.7954), rel=1e-3)
    assert calls_per_loss(1000, 0)[1] == pytest.approx(1000 / 3.6889, rel=1e-3)


def test_the_natural_rate() -> None:
    lines = [
        "plain: threads as the kernel and Python schedule them; quiet: as the lab has them",
        "busy: another thread of the process is in the interpreter half of the time, as an "
        "engine's main thread is; alone: none is",
    ]
    data = {}
    for scheduling, others in itertools.product(("plain", "quiet"), ("busy", "alone")):
        with valkey_server() as port:
            run = subprocess.run(
                [sys.executable, "-m", PROGRAM, str(port), str(SECONDS), scheduling, others],
                capture_output=True,
                text=True,
                env=environment(LMCACHE_LOG_LEVEL="ERROR", LMCACHE_TRACK_USAGE="false"),
                cwd=ROOT,
                timeout=SECONDS + 120,
                check=True,
            )
        clients = json.loads(run.stdout.splitlines()[-1])
        calls, losses = sum(made for made, _ in clients), sum(lost for _, lost in clients)
        estimate, low, high = calls_per_loss(calls, losses)
        lines.append(
            f"{scheduling}, {others}: {losses} completions lost in {calls:,} EXISTS calls of 64 "
            f"keys in {SECONDS} s: one in {estimate:,.0f} (95%: {low:,.0f} to {high:,.0f})"
        )
        print(lines[-1], flush=True)
        data[f"{scheduling} {others}"] = {
            "calls": calls,
            "losses": losses,
            "calls_per_loss": [
                low,
                None if losses == 0 else estimate,
                None if losses == 0 else high,
            ],
        }
        assert calls > 0
    lines.append(f"load: {os.getloadavg()[0] / (os.cpu_count() or 1):.1f} processes for each CPU")
    results.write("lost_completions", COMMAND, lines, data)
    assert data["plain busy"]["losses"] > 0
