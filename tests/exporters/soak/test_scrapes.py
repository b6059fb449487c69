"""Ten minutes under the lab, scraped by two real Prometheus servers at unlike intervals."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from exporters import catalog
from tests.exporters.soak.prometheus import Prometheus, Stored, prometheus
from tests.lab.runs import end, start
from tests.lab.soak import results
from tests.prometheus_binary import programs
from tests.runbooks.command_line import COMMAND, environment

pytest.importorskip("torch")
pytest.importorskip("lmcache")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

RUN = "python -m pytest -q -s -m soak tests/exporters/soak"
SECONDS = float(os.environ.get("STALLSCOPE_SCRAPE_SECONDS", "600"))
INTERVALS = (5, 13)  # seconds, and no multiple of each other
LATE_SECONDS = 2.0  # a scrape's stamp is its start, its values are of a tick that began later
LEAST_TEXT = 10_000  # characters; less is no exporter of a running lab
RANKS, PODS, POD_RANKS = 2, 100, 8
# The design's budget of series.
WORKER, SCHEDULER, SHARD = 100, 250, 90
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
METRICS = {metric.name: metric for metric in catalog.METRICS}


def test_two_servers_see_the_same_counters(tmp_path: Path) -> None:
    server, promtool = programs()
    pages = tmp_path / "pages"
    pages.mkdir()
    lab = start(
        tmp_path,
        *("--ranks", str(RANKS), "--pages", str(pages), "--seconds", str(SECONDS + 60), "--async"),
        *("--prefill-rate", "1000000"),
    )
    checks = 0
    try:
        valkey = f"redis://127.0.0.1:{lab.shard_port()}"
        lab_ready = time.monotonic() + 60
        while len(list(pages.glob("*.page"))) < RANKS + 1 and time.monotonic() < lab_ready:
            time.sleep(0.2)
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(_exporter(pages, valkey))
            target = url.split("/")[2]
            servers = [
                stack.enter_context(prometheus(server, tmp_path / f"every-{n}", target, n))
                for n in INTERVALS
            ]
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                _check_formats(url, promtool)
                checks += 1
                assert lab.process.poll() is None, lab.log.read_text()
                time.sleep(min(20.0, max(0.0, until - time.monotonic())))
            stored = [s.raw('{job="stallscope"}', f"{SECONDS:.0f}s") for s in servers]
            refused = [_refused(s) for s in servers]
            series = _series(url)
    finally:
        end(lab)
    counters = [_counters(s) for s in stored]
    compared = _same(*counters)
    backward = [key for s in counters for key, rows in s.items() if _goes_back(rows)]
    gaps = [_gaps(s, n) for s, n in zip(stored, INTERVALS, strict=True)]
    lines = [
        f"W={RANKS}, asynchronous loading, {SECONDS:.0f} s; Prometheus every {INTERVALS[0]} s and "
        f"every {INTERVALS[1]} s on one exporter (pages and shard)",
        *(
            f"every {n:>2} s: {_ups(s)} scrapes, {len(c)} counter series, {len(g)} gaps, "
            f"{r} samples refused (duplicate, out of order, out of bounds)"
            for n, s, c, g, r in zip(INTERVALS, stored, counters, gaps, refused, strict=True)
        ),
        f"counters that went back: {len(backward)}; samples of one server between two of the "
        f"other's: {compared.inside:,}, outside: {len(compared.outside)}",
        f"promtool check metrics and the strict OpenMetrics parser: {checks} times clean",
        "",
        "series of            here  budget",
        f"a worker page       {series['worker']:>5}  {WORKER:>6}",
        f"the scheduler page  {series['scheduler']:>5}  {SCHEDULER:>6}",
        f"a shard             {series['shard']:>5}  {SHARD:>6}",
        f"an exporter         {series['exporter']:>5}",
        f"{PODS} pods x {POD_RANKS} ranks and {POD_RANKS} shards: {series['fleet']:,} series",
    ]
    print("\n".join(lines), flush=True)
    data = {"series": dict(series), "intervals": INTERVALS, "gaps": gaps, "backward": backward}
    if SECONDS >= 600:
        data["outside"] = compared.outside
        results.write("scrapes", RUN, lines, data)
    assert counters[0].keys() == counters[1].keys()
    assert compared.inside > 1000 and compared.outside == []
    assert backward == [] and gaps == [[], []] and refused == [0, 0]
    assert series["worker"] < WORKER and series["scheduler"] < SCHEDULER
    assert series["shard"] < SHARD


@contextlib.contextmanager
def _exporter(pages: Path, valkey: str):
    """The command as an operator starts it; yields its URL."""
    process = subprocess.Popen(
        [
            *(*COMMAND, "exporter", "--from", pages, "--valkey", valkey),
            *("--listen", "127.0.0.1:0", "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["listening"]
        deadline = time.monotonic() + 30
        while len(_get(url, "text/plain")) < LEAST_TEXT and time.monotonic() < deadline:
            time.sleep(0.2)  # its first tick is not over
        yield url
    finally:
        process.kill()
        process.communicate()


def _get(url: str, accept: str) -> str:
    asked = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert accept.split(";", maxsplit=1)[0] in answer.headers["Content-Type"]
        text: str = answer.read().decode()
    return text


def _check_formats(url: str, promtool: str) -> None:
    assert len(list(openmetrics_families(_get(url, OPENMETRICS)))) > 10
    text = _get(url, "text/plain")
    asked = [promtool, "check", "metrics"]
    said = subprocess.run(
        asked, input=text, text=True, capture_output=True, timeout=30, check=False
    )
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def _counters(stored: Stored) -> Stored:
    kinds = {k: v for k, v in stored.items() if METRICS.get(dict(k)["__name__"]) is not None}
    return {k: v for k, v in kinds.items() if METRICS[dict(k)["__name__"]].type == "counter"}


def _ups(stored: Stored) -> int:
    return sum(len(rows) for key, rows in stored.items() if dict(key)["__name__"] == "up")


def _goes_back(rows: list[tuple[float, float]]) -> bool:
    return any(b[1] < a[1] for a, b in pairwise(rows))


def _gaps(stored: Stored, interval: int) -> list[str]:
    """Scrapes that failed or were left out, and counters that were there and then not."""
    found = []
    [up] = [rows for key, rows in stored.items() if dict(key)["__name__"] == "up"]
    for key, rows in {**_counters(stored), (("__name__", "up"),): up}.items():
        times = [at for at, _ in rows]
        if any(b - a > 1.5 * interval for a, b in pairwise(times)):
            found.append(f"{key}: a hole")
        if times[-1] < up[-1][0]:
            found.append(f"{key}: gone")
        if len(set(times)) < len(times):
            found.append(f"{key}: two at once")
    return found + [f"a scrape failed at {at}" for at, value in up if value != 1]


class _Compared:
    """One server's samples against those around them of the other's."""

    def __init__(self) -> None:
        self.inside = 0
        self.outside: list[str] = []


def _same(often: Stored, seldom: Stored) -> _Compared:
    """Each sample of the slower server lies between its neighbours of the faster one."""
    found = _Compared()
    for key, rows in seldom.items():
        theirs = often.get(key, [])
        times = [at for at, _ in theirs]
        for at, value in rows:
            before = bisect_right(times, at - LATE_SECONDS) - 1
            after = bisect_left(times, at + LATE_SECONDS)
            if before < 0 or after >= len(times):
                continue
            if theirs[before][1] <= value <= theirs[after][1]:
                found.inside += 1
            else:
                found.outside.append(f"{key} at {at}: {value}")
    return found


def _refused(server: Prometheus) -> int:
    kinds = ("sample_duplicate_timestamp", "sample_out_of_order", "sample_out_of_bounds")
    return int(sum(server.own(f"prometheus_target_scrapes_{kind}_total") for kind in kinds))


def _series(url: str) -> Counter[str]:
    """How many series stand for one page, shard and exporter, and for a whole fleet's."""
    workers: Counter[str] = Counter()
    shards: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(_get(url, "text/plain")):
        for sample in family.samples:
            labels = sample.labels
            if labels.get("role") == "scheduler":
                found["scheduler"] += 1
            elif labels.get("rank") and METRICS[sample.name].emitted_by != "rule":
                workers[labels["rank"]] += METRICS[sample.name].emitted_by != "shard"
                shards[labels.get("shard", "")] += METRICS[sample.name].emitted_by == "shard"
            elif METRICS[sample.name].emitted_by == "shard":
                shards[labels["shard"]] += 1
            else:
                found["exporter"] += 1
    found["worker"], found["shard"] = max(workers.values()), max(shards.values())
    pod = POD_RANKS * found["worker"] + found["scheduler"] + found["exporter"]
    found["fleet"] = PODS * pod + POD_RANKS * found["shard"] + found["exporter"]
    return found
