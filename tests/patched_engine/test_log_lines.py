"""Known lines of the real libraries' loggers are counted on the page, and nothing else is."""

from __future__ import annotations

import logging
import time

import pytest

from exporters import page_layout as layout
from exporters.readers.pages import PageFolder
from patched_engine import recorder
from patched_engine.hooks import log_lines
from patched_engine.hooks.log_lines import MOST_LINES, LogCounter
from patched_engine.page import Page


@pytest.fixture
def page(tmp_path, monkeypatch):
    made = Page.create(tmp_path, {"roles": ["worker"]})
    monkeypatch.setattr(recorder, "_page", made)
    yield made
    made.close()


@pytest.fixture
def counter():
    before = logging.getLogRecordFactory()
    made = LogCounter(before)
    logging.setLogRecordFactory(made)
    yield made
    logging.setLogRecordFactory(before)


def counted(page):
    folder = PageFolder(page.path.parent)
    try:
        (sample,) = folder.read(time.monotonic_ns()).pages
    finally:
        folder.close()
    counters = sample.process.counters
    return {name[4:]: n for name, n in counters.items() if name.startswith("log_") and n}


def test_a_real_logger_of_lmcache(page, counter):
    """LMCache's loggers have handlers of their own and pass nothing on to the root."""
    lmcache_logging = pytest.importorskip("lmcache.logging")
    logger = lmcache_logging.init_logger("lmcache.v1.memory_management")
    logger.warning("Double free occurred, ref count %d", -1)
    logger.warning("something else")
    logging.getLogger("other").warning("Double free occurred")
    logging.getLogger("lmcache.v1.cache_engine").error("%s received None chunk_count", "rank 1")
    assert counted(page) == {}, "nothing is looked up while the engine logs"
    counter.poll(page)
    counter.poll(page)
    assert counted(page) == {"double_free": 1, "wrong_group": 1}


def test_a_line_that_cannot_be_written_raises_nothing(page, counter):
    logger = logging.getLogger("vllm.v1.engine")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    logger.error("EngineCore encountered a fatal error %d", "not a number")
    logger.error("EngineCore encountered a fatal error.")
    counter.poll(page)
    assert counted(page) == {"engine_died": 1}


def test_a_flood_is_bounded(page, counter):
    logger = logging.getLogger("vllm.v1.engine")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    for _ in range(MOST_LINES + 100):
        logger.error("x" * 10_000)
    assert len(counter._noted) == MOST_LINES
    assert max(len(message) for _, message in counter._noted) <= log_lines.MOST_CHARACTERS


def test_every_kind_has_a_place_on_the_page():
    assert {f"log_{kind}" for kind in layout.LOG_KINDS} <= set(layout.COUNTERS)
    assert len(layout.COUNTERS) <= layout.LANE_WORDS


def test_the_page_counts_by_itself(page, counter, monkeypatch):
    monkeypatch.setattr(logging, "setLogRecordFactory", lambda factory: None)
    monkeypatch.setattr(logging, "getLogRecordFactory", lambda: counter._factory)
    made = []
    monkeypatch.setattr(recorder, "when_paged", made.append)
    log_lines.install()
    made[0](page)
    assert len(page._pollers) == 1
