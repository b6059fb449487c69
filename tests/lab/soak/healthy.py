"""A quarter of an hour of what healthy engines live through: load, disturbances, measurements.

Rates change five times, one prompt is long, a shard is restarted, and for two minutes something
else takes a CPU. Loading is asynchronous: with the synchronous client a stock engine loses a
completion by itself within such a time, and is then rightly not found healthy.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis

from tests.lab.runs import LabRun, end, start
from tests.runbooks.command_line import COMMAND, environment

RATES = (0.8, 1.5, 0.6, 1.4, 0.5, 1.2)  # requests/s, each for a sixth of the time
LONG_PROMPT_TOKENS = 32_768
LONG_AT, HOG_AT, RESTART_AT = 0.25, 0.5, 0.9  # shares of the time
HOG_SECONDS = 120.0
QUIET_SECONDS = 6.0  # nobody restarts a shard under load
BLOCK_TOKENS = 512
DOCUMENTS = 250
_LAB = (
    # The CPU tier is full within minutes, and loses a document before its turn; yet it has room for
    # what a queue has prefetched, without which stock LMCache waits for ever.
    *("--ranks", "2", "--async", "--l1-memory", "24", "--chunk-bytes", "32768"),
    # Small steps with many collectives: the pages are written some thousand times a second.
    *("--tokens-per-step", "256", "--collectives-per-step", "64"),
    # No completion can be lost, so nothing has to be made rare.
    *("--prefill-rate", "1000000", "--plain-scheduling"),
)


@dataclass
class Watched:
    """What was seen from outside: samples of each process, and every scrape's findings."""

    samples: dict[str, list[tuple[float, int, int, int]]] = field(default_factory=dict)
    findings: Counter[str] = field(default_factory=Counter)
    evaluable: Counter[str] = field(default_factory=Counter)
    scrapes: int = 0
    done: list[str] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def write_requests(path: Path, seconds: float) -> None:
    """Mooncake rows: two questions about each document, half of each prompt its document."""
    chance = random.Random("healthy")
    rows, now, number = [], 0.0, 0
    is_long_due = True
    while now < seconds:
        if abs(now - RESTART_AT * seconds) < QUIET_SECONDS:
            now += QUIET_SECONDS
            continue
        tokens = 1024 + BLOCK_TOKENS * chance.randrange(4)
        if is_long_due and now >= LONG_AT * seconds:
            is_long_due, tokens = False, LONG_PROMPT_TOKENS
        blocks = tokens // BLOCK_TOKENS
        document, shared = (
            number // 2 % DOCUMENTS,
            blocks // 2 if tokens < LONG_PROMPT_TOKENS else 0,
        )
        hash_ids = [document * 1000 + i for i in range(shared)]
        hash_ids += range(10**6 + number * 1000, 10**6 + number * 1000 + blocks - shared)
        rows.append({"timestamp": now * 1e3, "input_length": tokens, "hash_ids": hash_ids})
        number += 1
        now += chance.expovariate(RATES[int(now / seconds * len(RATES))])
    path.write_text("\n".join(map(json.dumps, rows)))


def soak(folder: Path, seconds: float) -> Watched:
    """The whole of it; nothing is left behind."""
    requests, pages = folder / "requests.jsonl", folder / "pages"
    write_requests(requests, seconds)
    pages.mkdir()
    lab = start(
        folder, *_LAB, "--requests", str(requests), "--pages", str(pages),
        "--seconds", str(seconds),
    )  # fmt: skip
    watched = Watched()
    try:
        url = f"redis://127.0.0.1:{lab.shard_port()}"
        with _exporter(pages, url) as exporter:
            _watch(lab, exporter, seconds, watched)
    finally:
        end(lab)
    return watched


def _watch(
    lab: LabRun, exporter: tuple[psutil.Process, str], seconds: float, watched: Watched
) -> None:
    lab_process = psutil.Process(lab.process.pid)
    processes = {"exporter": exporter[0]} | _engine(lab_process)
    began = time.monotonic()
    hog: subprocess.Popen[bytes] | None = None
    server: subprocess.Popen[bytes] | None = None
    try:
        while (elapsed := time.monotonic() - began) < seconds - 5:
            assert lab.process.poll() is None, _why(lab)
            if hog is None and elapsed >= HOG_AT * seconds:
                burn = f"import time\nend=time.time()+{HOG_SECONDS}\nwhile time.time()<end: 0"
                hog = subprocess.Popen([sys.executable, "-c", burn])
                watched.done.append(f"CPU hog from {elapsed:.0f} s for {HOG_SECONDS:.0f} s")
            if server is None and elapsed >= RESTART_AT * seconds:
                server = _restart(lab_process, lab.shard_port())
                watched.done.append(f"shard restarted at {elapsed:.0f} s")
            # Before the scrape: its connection and thread are the exporter's for a moment.
            for name, process in processes.items():
                with process.oneshot():
                    row = (process.memory_info().rss, process.num_fds(), process.num_threads())
                watched.samples.setdefault(name, []).append((elapsed, *row))
            _scrape(exporter[1], watched)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began - elapsed)))
        watched.result = lab.result(seconds=90)  # the restarted server lives until then
    finally:
        for process in (hog, server):
            if process is not None:
                process.kill()
                process.wait()


def _why(lab: LabRun) -> str:
    """What the lab said before it ended, and the figures it ended with."""
    out, _ = lab.process.communicate()
    faults = re.search(r'"stock_faults": {[^}]*}', out or "")
    return f"{lab.log.read_text()[-2000:]}\n{faults.group(0) if faults else ''}"


def _engine(lab: psutil.Process) -> dict[str, psutil.Process]:
    """The engine's processes by role: the host forks the ranks in order, then the scheduler."""
    host = next(p for p in lab.children(recursive=True) if "lab.host" in p.cmdline())
    children = sorted(host.children(), key=lambda p: (p.create_time(), p.pid))
    names = [f"rank {i}" for i in range(len(children) - 1)]
    return dict(zip([*names, "scheduler"], children, strict=True))


def _restart(lab: psutil.Process, port: int) -> subprocess.Popen[bytes]:
    """End the lab's server as its operator would and start it again, on the same port."""
    old = next(p for p in lab.children(recursive=True) if f":{port}" in " ".join(p.cmdline()))
    command = [old.exe(), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    old.send_signal(signal.SIGTERM)
    old_is_gone = time.monotonic() + 5
    while old.is_running() and old.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < old_is_gone
        time.sleep(0.02)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
                return server
            except redis.RedisError:
                assert time.monotonic() < old_is_gone
                time.sleep(0.02)


@contextmanager
def _exporter(pages: Path, url: str) -> Iterator[tuple[psutil.Process, str]]:
    process = subprocess.Popen(
        [
            *COMMAND,
            "exporter",
            "--from",
            pages,
            "--valkey",
            url,
            "--listen",
            "127.0.0.1:0",
            "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), json.loads(process.stdout.readline())["listening"]
    finally:
        process.kill()
        process.communicate()


def _scrape(url: str, watched: Watched) -> None:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    watched.scrapes += 1
    for line in text.splitlines():
        if match := re.match(r'stallscope_finding\{.*finding="([^"]+)".*\} 1', line):
            watched.findings[match.group(1)] += 1
        elif match := re.match(r'stallscope_finding_evaluable\{finding="([^"]+)"\} 1', line):
            watched.evaluable[match.group(1)] += 1


def page_events(result: dict[str, Any]) -> int:
    """Records written to the ranks' pages: of each step's collectives an arrival and a departure,
    four of each step, nine of each store, load and lookup (benchmarks/results/page.md), two of each
    call of the native client."""
    steps, each = result["steps"], result["stated"]["collectives_per_step"]
    events = result["ranks"] * steps * (2 * each + 4)
    for row in result["per_rank"]:
        calls = row["calls"]
        events += 9 * (calls["store"] + calls["load"] + calls["lookup"]) + 2 * calls["client"]
    return int(events)
