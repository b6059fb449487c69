"""The request log on a real page: what of each request is counted, once, and under which band."""

from __future__ import annotations

import time

import pytest

from exporters import page_layout as layout
from exporters.readers.pages import PageFolder
from patched_engine import recorder, requests
from patched_engine import request_log as module
from patched_engine.page import Page
from patched_engine.request_log import RequestLog


@pytest.fixture
def page(tmp_path, monkeypatch):
    made = Page.create(tmp_path, {"roles": ["scheduler"]})
    monkeypatch.setattr(recorder, "_page", made)
    yield made
    made.close()


def shown(page):
    """The process as a reader sees it."""
    folder = PageFolder(page.path.parent)
    try:
        (sample,) = folder.read(time.monotonic_ns()).pages
    finally:
        folder.close()
    return sample.process


def counted(page):
    return {name: n for name, n in shown(page).counters.items() if n and "nanosec" not in name}


def test_a_request_from_arrival_to_end(page):
    log = RequestLog()
    log.admitted("a", 10_000, time.time() - 40)
    log.scheduled({"a": 4096}, 3, 1)
    log.scheduled({"a": 5904}, 2, 1)
    log.first_token("a", 512, 2048)
    log.scheduled({"a": 1}, 0, 1)
    log.first_token("a", 512, 2048)  # a second one is none
    log.finished("a")
    log.finished("a")
    band, bucket = 1, layout.TTFT_BOUNDS_SECONDS.index(50.0)
    assert counted(page) == {
        "requests_admitted": 1,
        "requests_finished": 1,
        "prefill_steps": 2,
        "scheduled_tokens": 10_001,
        "scheduled_prefill_tokens": 10_000,
        "prompt_tokens": 10_000,
        "prompt_engine_cached_tokens": 512,
        "prompt_external_cached_tokens": 2048,
        "requests_hit_external": 1,
        f"ttft_{band}_bucket_{bucket}": 1,
    }
    process = shown(page)
    assert process.counters[f"ttft_{band}_nanoseconds"] == pytest.approx(40e9, rel=0.02)
    assert (process.gauges["requests_waiting"], process.gauges["requests_running"]) == (0, 1)
    assert "prefill_scheduled" in process.marks


@pytest.mark.parametrize(
    ("engine", "external", "source"),
    [(0, 0, "none"), (16, 0, "engine"), (16, 16, "engine"), (16, 17, "external")],
)
def test_where_most_of_a_hit_came_from(page, engine, external, source):
    log = RequestLog()
    log.admitted("a", 100, time.time())
    log.first_token("a", engine, external)
    assert counted(page)[f"requests_hit_{source}"] == 1


@pytest.mark.parametrize(
    ("tokens", "band"),
    [(1, 0), (8_192, 0), (8_193, 1), (32_768, 1), (98_304, 2), (98_305, 3), (10**6, 3)],
)
@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (29.9, 8), (31.0, 9), (1e6, 12)])
def test_bands_and_buckets_end_where_they_say(page, tokens, band, seconds, bucket):
    log = RequestLog()
    log.admitted("a", tokens, time.time() - seconds)
    log.first_token("a", 0, 0)
    assert counted(page)[f"ttft_{band}_bucket_{bucket}"] == 1


def test_a_clock_that_was_set_back_gives_no_negative_time(page):
    log = RequestLog()
    log.admitted("a", 1, time.time() + 3600)
    log.first_token("a", 0, 0)
    assert counted(page)["ttft_0_bucket_0"] == 1


def test_an_aborted_request_has_no_first_token(page):
    log = RequestLog()
    for _ in range(2):
        log.admitted("a", 1, time.time())
    log.finished("a")
    log.first_token("a", 0, 0)
    assert counted(page) == {"requests_admitted": 1, "requests_finished": 1}


def test_requests_that_the_engine_forgets_are_forgotten(page, monkeypatch):
    monkeypatch.setattr(module, "MOST_REQUESTS", 10)
    log = RequestLog()
    for i in range(100):
        log.admitted(str(i), 1, time.time())
    assert len(log._prefilling) == len(log._unfinished) == 10


def test_without_a_page_it_keeps_nothing(monkeypatch):
    monkeypatch.setattr(recorder, "_page", None)
    requests.admitted("a", 1, 0.0)
    requests.scheduled({"a": 1}, 0, 0)
    requests.first_token("a", 0, 0)
    requests.finished("a")
    assert not requests._prefilling
    assert not requests._unfinished


def test_what_it_cannot_take_is_a_fault_and_no_exception(page):
    before = recorder.faults["request log"]
    log = RequestLog()
    log.admitted("a", None, None)
    log.first_token("a", 0, 0)
    log.scheduled({"a": None, "b": 1}, 0, 0)
    assert recorder.faults["request log"] == before + 2
    assert recorder.status()["faults"]["request log"] >= 2
