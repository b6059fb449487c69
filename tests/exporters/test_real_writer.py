"""The reader against the engine's own writer, in processes that are stopped and killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detectors import ALL_RULES
from exporters.evaluator import Evaluator

ROOT = Path(__file__).resolve().parents[2]
# Rank 1 comes 20 ms late; the ranks meet through files, which costs nothing of the engine's.
_WORKER = """
import json, sys, time
from pathlib import Path
from exporters import page_layout as layout
from patched_engine.page import Page

folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
page = Page.create(folder, {
    "engine_id": "e", "roles": ["worker"], "rank": rank, "world_size": size,
    "groups": [{"ring": 0, "name": "world", "ranks": list(range(size))}],
})
_, ring = page.new_ring()
stamps = []
op, basis = layout.OP_INDEX["all_gather"], layout.BASIS_INDEX["host"]
for sequence in range(1, 31):
    time.sleep(0.02 if rank == 1 else 0)
    arrived = time.monotonic()
    offset = ring.begin(op, basis, sequence, 100)
    (folder / f"{sequence}.{rank}").touch()
    while not all((folder / f"{sequence}.{r}").exists() for r in range(size)):
        time.sleep(0.0002)
    ring.end(offset)
    stamps.append(time.monotonic() - arrived)
page.add(layout.COUNTER_INDEX["steps"], 30)
page.operation(layout.KIND_INDEX["store"], layout.TIER_INDEX["l1"], 1, 2, 256, 1, 99, 1)
page.submit("lookup", 3_000_000_000, 2, "first-key", (5,))
print(json.dumps(stamps), flush=True)
if sys.stdin.readline() == "close\\n":
    page.close()
"""


@contextlib.contextmanager
def _workers(folder, size):
    made = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(folder), str(rank), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(size)
    ]
    try:
        yield made, [json.loads(process.stdout.readline()) for process in made]
    finally:
        for process in made:
            process.kill()
            process.communicate()


def test_what_was_written_is_what_is_read(tmp_path):
    with _workers(tmp_path, 2) as (_, stamps):
        evaluator = Evaluator(tmp_path, (), ALL_RULES)
        evaluation = evaluator.tick()
        evaluator.close()
    [engine] = evaluation.snapshot.engines
    assert evaluation.snapshot.unseen == ()
    for process in engine.processes:
        assert process.liveness == "alive"
        assert process.counters["steps"] == 30
        assert [(o.kind, o.bytes) for o in process.operations] == [("store", 99)]
        assert [(p.kind, p.first_key, p.connection_ids) for p in process.pending] == [
            ("lookup", "first-key", (5,))
        ]
    [group] = engine.groups
    [total] = group.totals
    assert (total.count, group.unjoined) == (30, 0)
    # The definition, d - min d, on stamps taken outside the page: a busy machine stretches both.
    outside = sum(max(0.0, early - late) for early, late in zip(*stamps, strict=True))
    assert total.charged_seconds[1] == pytest.approx(outside, rel=0.1)


def _until(evaluator, wanted, limit_seconds):
    began = time.monotonic()
    while time.monotonic() - began < limit_seconds:
        findings = evaluator.tick().findings
        if [(f.rank, wanted in f.summary) for f in findings] == [(1, True)]:
            return time.monotonic() - began
        time.sleep(0.2)
    pytest.fail(f"{wanted} was not named: {findings}")


def test_stopped_is_frozen_and_killed_is_dead(tmp_path):
    with _workers(tmp_path, 2) as (processes, _):
        evaluator = Evaluator(tmp_path, (), ALL_RULES)
        assert evaluator.tick().findings == ()
        os.kill(processes[1].pid, signal.SIGSTOP)
        assert _until(evaluator, "frozen", 5) < 5
        os.kill(processes[1].pid, signal.SIGCONT)
        deadline = time.monotonic() + 3
        while evaluator.tick().findings:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.kill(processes[1].pid, signal.SIGKILL)
        assert _until(evaluator, "dead", 2) < 2
        evaluator.close()


def test_a_clean_end_takes_its_page_along(tmp_path):
    with _workers(tmp_path, 2) as (processes, _):
        evaluator = Evaluator(tmp_path, (), ALL_RULES)
        for process in processes:
            process.communicate("close\n", timeout=10)
        assert evaluator.tick().snapshot.engines == ()
        evaluator.close()
