"""The samples of a scheduler's requests and of the workers' prefixes and L1."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from exporters import catalog, page_layout
from exporters.sample import Sample
from exporters.snapshot import Engine, Process

_NANOSECONDS = 1e9


def request_samples(engine: Engine) -> Iterator[Sample]:
    """All of one engine."""
    for process in engine.processes:
        if "scheduler" in process.roles:
            yield from _scheduler(engine.engine_id, process)
    for rank, worker in engine.workers().items():
        if "l1_read" in worker.marks:
            labels = (engine.engine_id, str(rank))
            yield Sample(catalog.L1_USED, labels, worker.gauges.get("l1_used_bytes", 0))
            yield Sample(catalog.L1_CAPACITY, labels, worker.gauges.get("l1_capacity_bytes", 0))
    for kind in page_layout.LOG_KINDS:
        lines = sum(process.counters.get(f"log_{kind}", 0) for process in engine.processes)
        yield Sample(catalog.LOG_LINES, (engine.engine_id, kind), lines)
    for limit in engine.prefix_limits:
        labels = (engine.engine_id, str(limit.rank))
        yield Sample(catalog.PREFIX_LIMITED, labels, limit.limited_lookups)
        yield Sample(catalog.PREFIX_LOST, labels, limit.lost_chunks)


def _scheduler(engine_id: str, process: Process) -> Iterator[Sample]:
    labels = (engine_id,)
    counters, gauges = process.counters, process.gauges
    for name, metric in catalog.REQUEST_COUNTERS.items():
        yield Sample(metric, labels, counters.get(name, 0))
    for source in catalog.HIT_SOURCES:
        value = counters.get(f"requests_hit_{source}", 0)
        yield Sample(catalog.REQUEST_HITS, (*labels, source), value)
    yield Sample(catalog.REQUESTS_WAITING, labels, gauges.get("requests_waiting", 0))
    yield Sample(catalog.REQUESTS_RUNNING, labels, gauges.get("requests_running", 0))
    bounds = [*map(str, page_layout.TTFT_BOUNDS_SECONDS), "+Inf"]
    for band, most in enumerate([*map(str, page_layout.TTFT_BANDS_TOKENS), "+Inf"]):
        of_band = (*labels, most)
        counts = [
            counters.get(f"ttft_{band}_bucket_{i}", 0) for i in range(page_layout.TTFT_BUCKET_COUNT)
        ]
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            yield Sample(catalog.TTFT, of_band, count, "_bucket", bound)
        seconds = counters.get(f"ttft_{band}_nanoseconds", 0) / _NANOSECONDS
        yield Sample(catalog.TTFT, of_band, sum(counts), "_count")
        yield Sample(catalog.TTFT, of_band, seconds, "_sum")
