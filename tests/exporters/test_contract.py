"""What a live exporter emits is what the catalog lists, over HTTP from pages and a real Valkey."""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.request

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from detectors import ALL_RULES
from exporters import catalog
from exporters.evaluator import Evaluator
from exporters.page_layout import PendingRecord
from exporters.server import MetricsServer
from exporters.ticker import Ticker
from tests.exporters.page_files import SECOND, PageFile, locked, worker_info
from tests.servers import free_port, valkey_server

SIZE = 2
# Absent while there is nothing to tell; everything else a run emits whatever happens in it.
ONLY_WHILE = {
    catalog.PENDING_AGE: "an operation is pending",
    catalog.COLLECTIVE_OPEN: "a collective is open",
    catalog.PATCH_INFO: "the process takes patches",
    catalog.KEY_NAMESPACE_INFO: "the process has built its cache engine",
    catalog.SOURCE_INFO: "a source is not wholly read",
    catalog.SHARD_LATENCY: "one of the commands was run",
    catalog.SHARD_RANK_KEYS: "there are keys",
    catalog.SHARD_RANK_BYTES: "there are keys",
    catalog.FINDING: "a finding stands",
    catalog.FINDING_SINCE: "a finding stands",
}
# These take some minutes of traffic: tests/exporters/test_model.py emits them.
LATER = (
    catalog.MODEL_TOKEN_BYTES,
    catalog.MODEL_BREAK_EVEN,
    catalog.MODEL_OFFERED,
    catalog.MODEL_SERVICE,
    catalog.MODEL_RHO,
    catalog.MODEL_SHARD_SERVICE,
)


@contextlib.contextmanager
def exporting(pages_dir, urls):
    """A running exporter with every rule; yields its URL once it has ticked."""
    ticker = Ticker(Evaluator(pages_dir, urls, ALL_RULES, with_samples=True))
    server = MetricsServer(ticker, pages_dir, "127.0.0.1", 0)
    ticker.start()
    server.start()
    try:
        wait_for_ticks(ticker, 1)
        yield "http://{}:{}/metrics".format(*server.address)
    finally:
        server.stop()
        ticker.stop()


def wait_for_ticks(ticker, count, seconds=15.0):
    deadline = time.monotonic() + seconds
    while (tick := ticker.latest()) is None or tick.number < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def emitted(url):
    """Name of a series -> (type, help, label names of each sample, less a bucket's bound)."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    return {
        sample.name: (family.type, family.documentation, sorted(set(sample.labels) - {"le"}))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def listed():
    """The same of the catalog."""
    return {
        name: (m.type, m.help, sorted(m.labels))
        for m in catalog.METRICS
        for name in catalog.series_names(m)
    }


def check_listed(found):
    """Every emitted metric is in the catalog, as it is there."""
    known = listed()
    assert {n: f for n, f in found.items() if known.get(n) != f} == {}


def never(found):
    """The listed metrics that were not emitted -> who should have, and on what basis."""
    missing = [
        m
        for m in catalog.METRICS
        if m not in (*ONLY_WHILE, *LATER) and not set(catalog.series_names(m)) <= set(found)
    ]
    return {m.name: (m.emitted_by, m.basis) for m in missing}


def lockstep_pages(folder, shard_url):
    """Two workers with joined collectives, one more that is open, a pending lookup; a scheduler."""
    now = time.monotonic_ns()
    pages = []
    for rank in range(SIZE):
        info = worker_info(rank, SIZE, shard_url=shard_url, key_fingerprint="0123")
        page = PageFile(folder / f"{rank}.page", {**info, "patches": {"release-once": "applied"}})
        page.mark("l1_read", now)
        for number in range(1, 11):
            arrive = now - (20 - number) * SECOND // 10 + rank * SECOND // 100
            depart = now - (20 - number) * SECOND // 10 + 2 * SECOND // 100
            page.record(number, number, arrive, depart, duration_ns=depart - arrive)
        pages.append(page)
    pages[0].record(11, 11, now)
    lookup = PendingRecord(1, 1, "lookup", now, 3 * SECOND, 1, "key", ())
    pages[0].pending(0, lookup)
    scheduler = {"engine_id": "engine-a", "roles": ["scheduler"], "world_size": SIZE}
    pages.append(PageFile(folder / "scheduler.page", scheduler))
    return pages


def test_a_live_exporter_emits_the_catalog(tmp_path):
    with valkey_server() as port:
        with redis.Redis(port=port) as client:
            client.set("a-model@2@1@ff@bfloat16", b"x")
        down = f"redis://127.0.0.1:{free_port()}"
        pages = lockstep_pages(tmp_path, down)
        urls = (f"redis://127.0.0.1:{port}", down)
        with locked(*(page.path for page in pages)), exporting(tmp_path, urls) as url:
            deadline = time.monotonic() + 10  # the finding that a shard is down takes pictures
            while catalog.FINDING.name not in (found := emitted(url)):
                assert time.monotonic() < deadline
                time.sleep(0.2)
    check_listed(found)
    assert never(found) == {}
    assert {m.name for m in ONLY_WHILE} <= set(found)


def test_a_metric_that_is_not_listed_fails_the_contract():
    found = listed()
    check_listed(found)
    with pytest.raises(AssertionError):
        check_listed({**found, "stallscope_new_total": ("counter", "New.", [])})
    with pytest.raises(AssertionError):
        check_listed({**found, catalog.TICKS.name: ("gauge", catalog.TICKS.help, [])})
    del found["stallscope_steps_total"]
    assert never(found) == {"stallscope_steps_total": ("process", "step hook")}


def test_so_does_one_beside_a_live_lab(tmp_path):
    """Real workers, scheduler and shards, the exporter started as its own command's parts are."""
    pytest.importorskip("torch")
    pytest.importorskip("lmcache")
    from tests.lab.runs import end, leftovers, start

    pages = tmp_path / "pages"
    pages.mkdir()
    lab = start(tmp_path, "--ranks", "2", "--pages", str(pages), "--seconds", "60")
    try:
        urls = (f"redis://127.0.0.1:{lab.shard_port()}",)
        with exporting(pages, urls) as url:
            deadline = time.monotonic() + 60
            while never(found := emitted(url)) and time.monotonic() < deadline:
                time.sleep(0.5)
        assert lab.process.poll() is None
        lab.process.send_signal(signal.SIGTERM)
    finally:
        end(lab)
    assert leftovers(lab) == []
    check_listed(found)
    assert never(found) == {}
