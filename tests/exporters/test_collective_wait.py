"""The wait that is published against a late rank's own stamps, on real gloo; a frozen rank."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporters import page_layout as layout
from exporters.collectives import EngineJoiner, rooted_wait, symmetric_wait
from exporters.evaluator import Evaluator
from exporters.readers.pages import PageFolder
from tests.exporters.late_ranks import LATE_RANK, OPS

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("late_ranks.py")
DELAYS_MS = (0, 1, 5, 50)
WITHIN_SHARE, WITHIN_SECONDS = 0.1, 0.0002


@contextlib.contextmanager
def _ranks(tmp_path, plan):
    """Two ranks that have done the plan; yields them, their pages and their stamps (ns)."""
    pages = tmp_path / "pages"
    pages.mkdir()
    environment = {
        **os.environ,
        **{"STALLSCOPE_DIR": str(pages), "STALLSCOPE_ENGINE_ID": "e", "OMP_NUM_THREADS": "1"},
        "PYTHONPATH": str(ROOT),
    }
    made = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(r), str(tmp_path / "meet"), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for r in range(2)
    ]
    try:
        yield made, pages, [json.loads(process.stdout.readline()) for process in made]
    finally:
        for process in made:
            process.kill()
            process.communicate()


def _waits_ns(pages):
    """op -> the early rank's wait in each joined collective, in order; and the group as joined."""
    folder = PageFolder(pages)
    sample = folder.read(time.monotonic_ns())
    workers = {page.process.rank: page for page in sample.pages}
    assert sorted(workers) == [0, 1]
    [group] = EngineJoiner().update(workers, time.monotonic_ns())
    folder.close()
    [seat] = [seat for seat in workers[0].seats if len(seat.ranks) == 2]
    by_rank = [{e.sequence: e for e in workers[rank].entries[seat.ring]} for rank in (0, 1)]
    found = {op: [] for op in OPS}
    for sequence in sorted(by_rank[0].keys() & by_rank[1].keys()):
        entries = [by_rank[0][sequence], by_rank[1][sequence]]
        op = layout.OPS[entries[0].op]
        if op in found:
            joined = symmetric_wait(entries) if op == "all_gather" else rooted_wait(entries)
            assert joined is not None
            found[op].append(joined[0][1 - LATE_RANK])
    return found, group


def _check(tmp_path, plan):
    with _ranks(tmp_path, plan) as (_, pages, stamps):
        waits, group = _waits_ns(pages)
    count = sum(count for _, count in plan)
    late, early = stamps[LATE_RANK], stamps[1 - LATE_RANK]
    truth = [max(0, a - b) for a, b in zip(late, early, strict=True)]
    counted = {t.op: t.count for t in group.totals}
    for n, op in enumerate(OPS):
        assert (len(waits[op]), counted[op]) == (count, count)
        first = 0
        for delay_ms, many in plan:
            wait = statistics.median(waits[op][first : first + many]) / 1e9
            told = truth[n * count + first : n * count + first + many]
            expected = statistics.median(told) / 1e9
            print(f"{op} {delay_ms} ms: {wait * 1e3:.3f} ms, stamped {expected * 1e3:.3f} ms")
            assert abs(wait - expected) <= max(WITHIN_SHARE * expected, WITHIN_SECONDS), op
            assert expected >= 0.9 * delay_ms / 1e3
            first += many


def test_the_wait_is_the_late_ranks_own_arrival(tmp_path):
    _check(tmp_path, [(0, 200), (1, 200), (5, 200), (50, 20)])


@pytest.mark.soak
def test_the_wait_is_the_late_ranks_own_arrival_at_every_delay(tmp_path):
    _check(tmp_path, [(delay_ms, 200) for delay_ms in DELAYS_MS])


def test_a_frozen_rank_is_named_while_the_others_wait(tmp_path):
    with _ranks(tmp_path, [(0, 5)]) as (processes, pages, _):
        evaluator = Evaluator(pages, (), ())
        os.kill(processes[LATE_RANK].pid, signal.SIGSTOP)
        processes[1 - LATE_RANK].stdin.write("\n")
        processes[1 - LATE_RANK].stdin.flush()
        deadline = time.monotonic() + 20
        found = []
        while not found and time.monotonic() < deadline:
            [engine] = evaluator.tick().snapshot.engines
            found = [o for group in engine.groups for o in group.open]
            time.sleep(0.1)
        evaluator.close()
    [left] = found
    assert (left.op, left.present_ranks, left.missing_ranks) == (
        "all_gather",
        (1 - LATE_RANK,),
        (LATE_RANK,),
    )
