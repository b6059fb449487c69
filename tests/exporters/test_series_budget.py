"""How many series one page may stand for: what a fleet's Prometheus has to hold."""

from __future__ import annotations

import time
from collections import Counter

from exporters import page_layout as layout
from exporters.evaluator import Evaluator
from exporters.metrics import samples
from patched_engine.patches import PATCHES
from tests.exporters.page_files import SECOND, PageFile, locked, worker_info

SIZE = 8
WORKER, SCHEDULER = 100, 250  # fewer than that: the design's budget
# What vLLM's ranks call under prefill context parallelism.
OPS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier")


def _busy_page(path, info, now):
    """A page with something in everything that is shown only while there is something."""
    patches = {patch.name: "applied" for patch in PATCHES}
    page = PageFile(path, {**info, "patches": patches, "key_fingerprint": "0123"})
    for slot, kind in enumerate(layout.KINDS[1:]):
        page.pending(slot, layout.PendingRecord(1, 1, kind, now, 3 * SECOND, 1, "key", ()))
    return page


def test_a_page_stays_within_its_budget(tmp_path):
    now = time.monotonic_ns()
    pages = []
    for rank in range(SIZE):
        page = _busy_page(tmp_path / f"{rank}.page", worker_info(rank, SIZE), now)
        for number, op in enumerate(OPS, start=1):
            arrive, depart = now - SECOND + rank, now - SECOND // 2
            page.record(number, number, arrive, depart, op=op, duration_ns=depart - arrive)
        pages.append(page)
    pages[0].record(len(OPS) + 1, len(OPS) + 1, now)  # and all others are missing in it
    info = {"engine_id": "engine-a", "roles": ["scheduler"], "world_size": SIZE}
    pages.append(_busy_page(tmp_path / "scheduler.page", info, now))
    with locked(*(page.path for page in pages)):
        evaluator = Evaluator(tmp_path, (), ())
        found = list(samples(evaluator.tick(), tmp_path))
        evaluator.close()
    series: Counter[str] = Counter()
    for sample in found:
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        series[labels.get("rank") or labels.get("role", "")] += 1
    assert {str(rank) for rank in range(SIZE)} | {"scheduler"} <= series.keys()
    waits = [s for s in found if s.metric.name == "stallscope_collective_wait_seconds_total"]
    assert len(waits) == SIZE * len(OPS)
    print(dict(series))
    assert max(series[str(rank)] for rank in range(SIZE)) < WORKER
    assert series["scheduler"] < SCHEDULER
