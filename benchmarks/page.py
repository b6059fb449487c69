"""What the page costs the engine: one write, and all writes of a store of 64 real-size chunks.

Rivals for a counter: prometheus-client in one process and in its multi-process (mmap) mode, and
OpenTelemetry's SDK. The store is LMCache's own, on 12.4 MB chunks, with the hooks in place and out
of it in alternation, and against itself for the A/A spread.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import QUICK, Bar, Report, take_no_arguments
from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks import lmcache_engine
from patched_engine.page import Page

CALLS = 50
ROUNDS = 400 if QUICK else 4_000
CHUNKS = 64
LAYERS = 42  # 42 x 256 x 576 bfloat16 is 12.4 MB, the post's chunk
HEAD_SIZE = 576
CHUNK_TOKENS = 256
PAIRS = 8 if QUICK else 40
COUNTER_LIMIT_SECONDS = 1e-6
RING_LIMIT_SECONDS = 1e-6
EVENT_SHARE_LIMIT = 0.01
SLOWDOWN_LIMIT = 1.05


def median_seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of one call, and the spread between the two halves of the rounds (A/A)."""
    samples = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter_ns() - start) / CALLS / 1e9)
    halves = statistics.median(samples[::2]), statistics.median(samples[1::2])
    return statistics.median(samples), abs(halves[0] - halves[1])


def prometheus_multiprocess() -> tuple[float, float]:
    """prometheus-client's Counter.inc over its mmap files: needs a process of its own."""
    script = (
        "from prometheus_client import Counter\n"
        "from benchmarks.page import median_seconds\n"
        "print(*median_seconds(Counter('bench_bytes', 'x', ['rank']).labels('0').inc))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    return float(out[-2]), float(out[-1])


def single_writes(report: Report, page: Page) -> float:
    """One write of each kind beside the rivals; returns the dearest plain write in seconds."""
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import CollectorRegistry, Counter

    taken = page.new_ring()
    assert taken is not None
    ring = taken[1]
    gather, host = layout.OP_INDEX["all_gather"], layout.BASIS_INDEX["host"]
    store_bytes = layout.COUNTER_INDEX["store_bytes"]
    prometheus = Counter("bench_bytes", "x", ["rank"], registry=CollectorRegistry()).labels("0")
    otel = MeterProvider().get_meter("bench").create_counter("bench_bytes")
    ours: dict[str, Callable[[], object]] = {
        "page: counter": lambda: page.add(store_bytes, 4096),
        "page: mark": lambda: page.mark(1),
        "page: ring record (arrive + depart)": lambda: ring.end(ring.begin(gather, host, 7, 4096)),
        "page: operation record": lambda: page.operation(1, 1, 2, 3, 4, 5, 6, 7),
        "page: pending (submit + complete)": lambda: page.complete(page.submit("get", 1, 64, "k")),
        "prometheus-client: counter": lambda: prometheus.inc(4096),
        "opentelemetry-sdk: counter": lambda: otel.add(4096),
    }
    measured = {name: median_seconds(call) for name, call in ours.items()}
    measured["prometheus-client, multi-process: counter"] = prometheus_multiprocess()
    counter = measured["page: counter"][0]
    for name, (seconds, spread) in measured.items():
        report.rows.append(
            (name, f"{seconds * 1e6:.3f}", f"{spread * 1e6:.3f}", f"{seconds / counter:.1f}")
        )
    for label, name, limit in (
        ("counter write, median", "page: counter", COUNTER_LIMIT_SECONDS),
        ("ring record, median", "page: ring record (arrive + depart)", RING_LIMIT_SECONDS),
    ):
        seconds, spread = measured[name]
        report.bars.append(Bar(label, seconds * 1e6, limit * 1e6, "us", noise=spread * 1e6))
    return max(measured[n][0] for n in ("page: counter", "page: operation record"))


def engine(folder: Path) -> Any:
    """A real LMCacheEngine of one rank with an L1 of its own and no L2."""
    import torch
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    from lab.connector import PagedCPUConnector

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS, local_cpu=True, max_local_cpu_size=2.0, extra_config={}
    )
    metadata = LMCacheMetadata(
        model_name="bench", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=torch.bfloat16, kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, HEAD_SIZE), use_mla=True,
        role="worker", chunk_size=CHUNK_TOKENS, engine_id="bench",
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )  # fmt: skip
    made = LMCacheEngineBuilder.get_or_create(
        "bench",
        config,
        metadata,
        PagedCPUConnector(HEAD_SIZE, chunk_copy_seconds=0.0),
        lambda *_: None,
        lambda *_: None,
    )
    made.post_init()
    return made


class StoreRun:
    """Stores prompts of 64 new chunks, with the hooks in place or out of it."""

    def __init__(self) -> None:
        import torch
        from lmcache.v1.cache_engine import LMCacheEngine
        from lmcache.v1.storage_backend.storage_manager import StorageManager

        self.classes = ((LMCacheEngine, "store"), (StorageManager, "batched_put"))
        self.hooked = [getattr(owner, name) for owner, name in self.classes]
        self.tokens = CHUNKS * CHUNK_TOKENS
        self.mask = torch.ones(self.tokens, dtype=torch.bool)
        self.kv = torch.zeros(LAYERS, self.tokens, HEAD_SIZE, dtype=torch.bfloat16)
        self.slots = torch.arange(self.tokens)
        self.prompts = 0

    def use_hooks(self, hooked: bool) -> None:
        for (owner, name), wrapped in zip(self.classes, self.hooked, strict=True):
            setattr(owner, name, wrapped if hooked else wrapped.__wrapped__)

    def seconds(self, made: Any, hooked: bool) -> float:
        """One store of 64 chunks that were never stored before."""
        self.use_hooks(hooked)
        self.prompts += 1
        tokens = [self.prompts] * self.tokens
        start = time.perf_counter()
        made.store(
            tokens, mask=self.mask, kvcaches=self.kv, slot_mapping=self.slots, req_id="bench"
        )
        return time.perf_counter() - start


def upper_95(ratios: list[float]) -> float:
    """Upper end of the 95% interval of the median ratio, by order statistics (no distribution)."""
    ordered = sorted(ratios)
    count = len(ordered)
    above = 0.0
    for k in range(count - 1, -1, -1):
        # P(the median lies above ordered[k]) = P(at most count-k-1 heads of count)
        above += math.comb(count, count - k - 1) / 2**count if count else 0.0
        if above > 0.025:
            return ordered[min(k + 1, count - 1)]
    return ordered[-1]


def store_cost(report: Report, page: Page, unit_seconds: float, folder: Path) -> None:
    """The hooks' share of a store, by count and by a paired A/B."""
    made = engine(folder)
    run = StoreRun()
    for _ in range(3):
        run.seconds(made, hooked=True)
    writes = count_writes(page, lambda: run.seconds(made, hooked=True))
    ab, aa, plain = [], [], []
    for i in range(PAIRS):
        order = (True, False) if i % 2 else (False, True)
        timed = {hooked: run.seconds(made, hooked) for hooked in order}
        ab.append(timed[True] / timed[False])
        first, second = run.seconds(made, False), run.seconds(made, False)
        aa.append(second / first if i % 2 else first / second)
        plain.append(timed[False])
        print(f"\rstore pairs: {i + 1}/{PAIRS}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    store_seconds = statistics.median(plain)
    share = writes * unit_seconds / store_seconds
    noise = abs(upper_95(aa) - 1)
    report.rows.append(
        ("LMCache store, 64 chunks of 12.4 MB, no hooks", f"{store_seconds * 1e6:.0f}",
         f"{noise * store_seconds * 1e6:.0f}", f"{store_seconds / unit_seconds:.0f}")
    )  # fmt: skip
    report.notes.append(
        f"one store makes {writes} page writes; paired ratios over {PAIRS} pairs: "
        f"median hooked/plain {statistics.median(ab):.4f}, plain/plain {statistics.median(aa):.4f}"
    )
    report.bars.append(
        Bar("events x unit cost, share of a store", share * 100, EVENT_SHARE_LIMIT * 100, "%")
    )
    report.bars.append(
        Bar("hooked / plain store, 95% upper end", upper_95(ab), SLOWDOWN_LIMIT, "x", noise=noise)
    )


def count_writes(page: Page, call: Callable[[], object]) -> int:
    """How many page writes one call makes, by counting the writer's methods."""
    counted = 0

    def counting(method: Any) -> Any:
        def write(*args: Any) -> Any:
            nonlocal counted
            counted += 1
            return method(*args)

        return write

    names = ("add", "mark", "operation", "submit")
    originals = {name: getattr(Page, name) for name in names}
    try:
        for name, method in originals.items():
            setattr(Page, name, counting(method))
        call()
    finally:
        for name, method in originals.items():
            setattr(Page, name, method)
    return counted


def main() -> int:
    take_no_arguments(__doc__)
    report = Report("page", ("write", "us", "A/A us", "x counter"))
    report.versions = {
        name: importlib.metadata.version(name)
        for name in ("lmcache", "torch", "prometheus-client", "opentelemetry-sdk")
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[recorder.FOLDER_VARIABLE] = name
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
        os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", name)
        lmcache_engine.install()
        page = recorder.identify("worker", 0, engine_id="bench")
        assert page is not None, recorder.status()
        unit_seconds = single_writes(report, page)
        store_cost(report, page, unit_seconds, folder)
        code = report.finish()
        sys.stdout.flush()
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR")
        page.close()
    os._exit(code)  # LMCache's threads would hold the process open


if __name__ == "__main__":
    sys.exit(main())
