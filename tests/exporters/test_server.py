"""The contract of /metrics, over HTTP: the catalog and nothing else, from the last tick only."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporters import reasons
from exporters.catalog import (
    KEY_NAMESPACE_INFO,
    METRICS,
    PATCH_INFO,
    SHARD_COMMAND_FIGURES,
    SHARD_COMMANDS,
    SHARD_FIGURES,
    series_names,
)
from exporters.metrics import samples
from exporters.server import STALE_AFTER_SECONDS, MetricsServer, TickCollector
from exporters.snapshot import (
    EngineModel,
    Evaluation,
    Finding,
    Group,
    GroupTotal,
    KeySample,
    ModelPoint,
    OpenCollective,
    Pending,
    PrefixLimit,
    Shard,
    Unseen,
    Verdict,
)
from exporters.ticker import Tick, Ticker
from tests.detectors.pictures import engine, snapshot, worker

FOLDER = Path("/pages")
# More patches than there are, and what no writer of ours leaves.
FACTS = {
    "patches": {
        **{f"patch-{i}": "not needed: because" for i in range(15)},
        "x" * 500: ["?"],
        "one-too-many": "applied",
    },
    "key_fingerprint": "0123456789abcdef",
}
SHARD_URL = "v-0:6379"


def _shard(at_seconds):
    """A shard whose main thread is busy half of the time."""
    figures = (*SHARD_FIGURES, "used_cpu_sys_main_thread", "used_cpu_user_main_thread")
    command = dict.fromkeys(SHARD_COMMAND_FIGURES, 1)
    info = {
        **dict.fromkeys((*figures, "eventloop_duration_sum"), 1),
        "used_active_time_main_thread": at_seconds / 2,
        **{f"cmdstat_{name}": command for name in (*SHARD_COMMANDS, "ping")},
        "cmdstat_get": {**command, "calls": int(100 * at_seconds)},
        **{f"latency_percentiles_usec_{name}": {"p50": 1.5, "p99": 9} for name in SHARD_COMMANDS},
        **{"db0": {"keys": 3}, "db1": {"keys": 4}, "valkey_version": "9.1.2", "role": "master"},
    }
    ranks = dict.fromkeys(map(str, range(8)), 12_400_000)
    return Shard(
        SHARD_URL,
        True,
        info=info,
        read_seconds=at_seconds,
        io_threads=4,
        log_entries=dict.fromkeys(("slow", "large-request", "large-reply"), 128),
        key_sample=KeySample(ranks, ranks, 100.0, at_seconds - 1),
    )


def _evaluation(size=2):
    """One picture in which every metric has a value."""
    totals = tuple(
        GroupTotal(op, "host", 5, (0.5,) * size, (0.25,) * size, (2,) * size)
        for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier")
    )
    groups = tuple(
        Group(
            name,
            tuple(range(size)),
            (),
            totals,
            (OpenCollective("all_gather", 3, 2.5, (0,), (1,)),),
            unjoined=1,
        )
        for name in ("tp", "pcp")
    )
    pending = tuple(
        Pending(i, kind, 1.0 + i, 3.0, 1, "key")
        for i, kind in enumerate(("store", "load", "lookup", "exists", "get", "set", "prefetch"))
    )
    processes = (
        *(
            dataclasses.replace(
                worker(r, size, pending=pending, info=FACTS), marks={"l1_read": 1.0}
            )
            for r in range(size)
        ),
        dataclasses.replace(worker(0, size, info=FACTS), roles=("scheduler",), rank=None),
    )
    whole = engine(size, groups, None, processes)
    limits = tuple(PrefixLimit(rank, 2, 64) for rank in range(size))
    points = (ModelPoint(0.0, 0, 0, 0.0), ModelPoint(300.0, 60, 60, 90.0))
    cost = EngineModel(points, 48_000.0, 100_000, 2.0, (50_000.0,))
    picture = snapshot(dataclasses.replace(whole, prefix_limits=limits, model=cost))
    picture = dataclasses.replace(
        picture,
        shards=(
            _shard(10.0),
            Shard("v-1:6379", False, reasons.TIMEOUT),
        ),
        unseen=(
            Unseen("v-1:6379", reasons.TIMEOUT, "no answer"),
            Unseen("x.page", reasons.TORN, "1 record"),
        ),
    )
    earlier = dataclasses.replace(picture, shards=(_shard(5.0),))
    picture = dataclasses.replace(picture, earlier=(earlier,))
    finding = Finding("straggler-rank", "critical", "text", 1, None, "e", 12.0)
    return Evaluation(
        picture,
        (finding,),
        (Verdict("straggler-rank", (finding,)), Verdict("store-skew", (), "too few", "too_few")),
    )


# What the exporter says of itself, whatever it sees.
OWN = {
    "stallscope_ticks_total",
    "stallscope_captures_total",
    "stallscope_capture_faults_total",
}


class _Fixed:
    """An evaluator that always gives the same, after `seconds`."""

    def __init__(self, evaluation, seconds=0.0):
        self.evaluation, self.seconds = evaluation, seconds
        self.ticks = 0
        self.closed = False

    def tick(self):
        self.ticks += 1
        time.sleep(self.seconds)
        return self.evaluation

    def close(self):
        self.closed = True


@contextlib.contextmanager
def _serving(evaluator, wait_for_a_tick=True):
    ticker = Ticker(evaluator)
    server = MetricsServer(ticker, FOLDER, "127.0.0.1", 0)
    ticker.start()
    server.start()
    try:
        deadline = time.monotonic() + 5
        while wait_for_a_tick and ticker.latest() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        yield "http://{}:{}".format(*server.address)
    finally:
        server.stop()
        ticker.stop()


def _get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read(), answer.headers


def _scrape(url):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(_get(f"{url}/metrics")[0].decode())
        for sample in family.samples
    }


def test_what_is_emitted_is_the_catalog_and_the_catalog_is_emitted():
    with _serving(_Fixed(_evaluation())) as url:
        text = _get(f"{url}/metrics")[0].decode()
    emitted = {
        sample.name: (family, sorted(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    listed = {name: metric for metric in METRICS for name in series_names(metric)}
    assert set(emitted) == set(listed)
    for name, (family, labels) in emitted.items():
        assert family.type == listed[name].type
        assert family.documentation == listed[name].help
        assert labels == sorted((*listed[name].labels, *(["le"] if "_bucket" in name else [])))


def test_the_strict_openmetrics_parser_takes_it():
    accept = "application/openmetrics-text; version=1.0.0"
    with _serving(_Fixed(_evaluation())) as url:
        body, headers = _get(f"{url}/metrics", Accept=accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    families = list(parse_openmetrics(body.decode()))
    assert sum(len(f.samples) for f in families) > len(METRICS)


def test_it_is_compressed_for_who_takes_that():
    with _serving(_Fixed(_evaluation())) as url:
        body, headers = _get(f"{url}/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert b"stallscope_finding" in gzip.decompress(body)


def test_the_series_of_one_page_stay_within_the_budget():
    """Under 100 a worker, 250 the scheduler, 90 a shard, at five operations and every kind."""
    with _serving(_Fixed(_evaluation(8))) as url:
        series = [dict(labels) for _, labels in _scrape(url)]
    for rank in map(str, range(8)):
        own = [s for s in series if s.get("rank") == rank and s.get("role") != "scheduler"]
        assert len(own) < 100
    assert len([s for s in series if s.get("role") == "scheduler"]) < 250
    assert 20 < len([s for s in series if s.get("shard") == SHARD_URL]) < 90


def test_values_are_those_of_the_tick():
    with _serving(_Fixed(_evaluation())) as url:
        found = _scrape(url)

    def value(name, **labels):
        return found[f"stallscope_{name}", tuple(sorted(labels.items()))]

    at = {"engine": "e", "op": "all_gather", "basis": "host", "rank": "1"}
    assert value("collective_wait_seconds_total", **at) == 1.0  # two groups of half a second
    assert value("collective_open_seconds", engine="e", op="all_gather", rank="1") == 2.5
    assert value("collectives_unjoined_total", engine="e") == 2
    process = {"engine": "e", "role": "worker", "rank": "0"}
    assert value("process_state", **process, state="alive") == 1
    assert value("process_state", **process, state="dead") == 0
    assert value("patch_info", **process, patch="patch-3", state="not_needed") == 1
    assert value("patch_info", **process, patch="x" * 64, state="other") == 1
    assert not [at for at in found if ("patch", "one-too-many") in at[1]]
    assert value("key_namespace_info", **process, fingerprint="0123456789abcdef") == 1
    assert value("pending_oldest_age_seconds", **process, kind="get") == 5.0
    where = {"engine": "e", "rank": "1", "shard": "", "severity": "critical"}
    assert value("finding", finding="straggler-rank", **where) == 1
    assert value("finding_since_seconds", finding="straggler-rank", **where) == 12
    assert value("finding_evaluable", finding="store-skew") == 0
    assert value("shard_up", shard="v-1:6379") == 0
    assert value("shard_main_thread_saturation", shard=SHARD_URL, bound="lower") == 0.5
    basis = "active_time_to_eventloop"
    assert value("shard_main_thread_saturation_info", shard=SHARD_URL, basis=basis) == 1
    assert value("shard_commands_total", shard=SHARD_URL, command="other") == 1
    assert value("source_up", source="v-1:6379") == 0
    assert value("source_up", source="v-0:6379") == 1
    assert value("source_up", source="pages") == 1
    assert value("source_info", source="v-1:6379", reason="timeout") == 1
    assert value("source_info", source="x.page", reason="torn") == 1
    assert ("stallscope_source_up", (("source", "x.page"),)) not in found  # read, but for a record


@pytest.mark.parametrize("facts", [{}, {"patches": "all", "key_fingerprint": 7}])
def test_a_page_without_those_facts_has_no_series_of_them(facts):
    picture = snapshot(engine(1, processes=(worker(0, 1, info=facts),)))
    found = {s.metric.name for s in samples(Evaluation(picture, (), ()), FOLDER)}
    assert "stallscope_steps_total" in found
    assert not {PATCH_INFO.name, KEY_NAMESPACE_INFO.name} & found


def test_a_slow_shards_answer_has_its_own_age():
    picture = snapshot(engine(2, (), None, ()))
    shards = tuple(
        dataclasses.replace(
            _shard(picture.now_seconds - late + 0.2), took_seconds=0.2, url=f"v-{late}"
        )
        for late in (-0.1, 0.7)
    )
    picture = dataclasses.replace(picture, shards=shards)
    with _serving(_Fixed(Evaluation(picture, (), ()))) as url:
        seen = _scrape(url)
    ages = [
        seen["stallscope_shard_answer_age_seconds", (("shard", s.url),)] for s in picture.shards
    ]
    assert ages == pytest.approx([0.0, 0.7])


def test_a_name_that_is_no_text_costs_nobody_elses_metrics():
    facts = {"patches": {"\ud800": "applied", "x" * 65: "off", "x" * 64: "off"}}
    picture = snapshot(engine(1, processes=(worker(0, 1, info=facts, engine_id="\udcff"),)))
    with _serving(_Fixed(Evaluation(picture, (), ()))) as url:
        found = [at for at in _scrape(url) if at[0] == PATCH_INFO.name]
    assert sorted(dict(labels)["patch"] for _, labels in found) == ["?", "x" * 64]


def test_a_folder_that_cannot_be_read_leaves_no_value_behind():
    whole = _evaluation()
    gone = dataclasses.replace(
        whole,
        findings=(),
        snapshot=dataclasses.replace(
            whole.snapshot,
            engines=(),
            unseen=(Unseen(str(FOLDER), reasons.MISSING_FOLDER, "no such folder"),),
        ),
    )
    with _serving(_Fixed(gone)) as url:
        found = _scrape(url)
    assert found["stallscope_source_up", (("source", "pages"),)] == 0
    assert not [labels for _, labels in found if "rank" in dict(labels)]


def test_any_number_of_scrapers_see_the_same_numbers():
    evaluator = _Fixed(_evaluation())
    with _serving(evaluator) as url:
        answers = []

        def scrape():
            found = _scrape(url)
            answers.append({k: v for k, v in found.items() if "tick" not in k[0]})

        threads = [threading.Thread(target=scrape) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 20 and all(a == answers[0] for a in answers)
        assert evaluator.ticks <= 4


def test_a_scrape_never_waits_for_a_tick():
    with _serving(_Fixed(_evaluation(), seconds=2.0), wait_for_a_tick=False) as url:
        began = time.monotonic()
        found = _scrape(url)
        assert time.monotonic() - began < 1
        assert set(found) == {(name, ()) for name in OWN}
        assert set(found.values()) == {0}


def test_the_age_is_told_and_old_values_vanish():
    now = [100.0]
    tick = Tick(7, _evaluation(), 99.0, 0.5)
    collector = TickCollector(lambda: tick, FOLDER, lambda: now[0])

    def names():
        return {s.name: s.value for f in collector.collect() for s in f.samples}

    assert names()["stallscope_tick_age_seconds"] == 1.0
    now[0] = 99.0 + STALE_AFTER_SECONDS + 0.1
    ages = {"stallscope_tick_age_seconds", "stallscope_tick_duration_seconds"}
    assert set(names()) == OWN | ages


def test_other_paths():
    with _serving(_Fixed(_evaluation())) as url:
        assert _get(f"{url}/-/healthy")[0] == b"ok\n"
        assert b"/metrics" in _get(url)[0]
        with pytest.raises(urllib.error.HTTPError) as caught:
            _get(f"{url}/nothing")
        assert caught.value.code == 404


def test_an_address_that_is_taken_is_an_error_at_once():
    with _serving(_Fixed(_evaluation())) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            MetricsServer(Ticker(_Fixed(_evaluation())), FOLDER, "127.0.0.1", port)


def test_a_tick_that_fails_is_tried_again_and_the_age_grows(caplog):
    class Failing(_Fixed):
        def tick(self):
            if self.ticks == 0:
                self.ticks += 1
                raise RuntimeError("once")
            return super().tick()

    evaluator = Failing(_evaluation())
    with _serving(evaluator):
        assert evaluator.ticks >= 2
    assert "a tick failed" in caplog.text
    assert evaluator.closed


def test_stopping_leaves_no_thread():
    before = threading.active_count()
    with _serving(_Fixed(_evaluation())):
        assert threading.active_count() > before
    assert threading.active_count() == before
