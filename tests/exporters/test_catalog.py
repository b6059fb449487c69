"""The catalog keeps Prometheus' rules and its own budget."""

from __future__ import annotations

import re

import pytest

from exporters import page_layout
from exporters.catalog import (
    HIT_SOURCES,
    METRICS,
    PAGE_COUNTERS,
    PREFIX,
    PROFILE_METRICS,
    REQUEST_COUNTERS,
    TIERED_COUNTERS,
)

BASE_UNITS = {"", "seconds", "bytes", "tokens", "chunks"}


@pytest.mark.parametrize("metric", (*METRICS, *PROFILE_METRICS), ids=lambda m: m.name)
def test_a_metric_keeps_the_rules(metric):
    assert re.fullmatch(r"stallscope_[a-z0-9_]+", metric.name)
    assert metric.name.startswith(PREFIX)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    assert metric.unit in BASE_UNITS
    if metric.unit:
        assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}")
    assert not re.search(r"milli|micro|nano|percent|_ms|_ns", metric.name)
    assert metric.help.endswith(".") or metric.help.endswith(").")
    assert metric.basis
    assert len(set(metric.labels)) == len(metric.labels)
    assert not {"request", "key", "pid", "incarnation", "page"} & set(metric.labels)


def test_names_are_there_once():
    names = [metric.name for metric in (*METRICS, *PROFILE_METRICS)]
    assert len(set(names)) == len(names)


def test_every_counter_of_the_page_is_exposed():
    several = {f"requests_hit_{source}" for source in HIT_SOURCES}
    several |= {name for name in page_layout.COUNTERS if name.startswith(("ttft_", "log_"))}
    parts = (set(PAGE_COUNTERS), set(TIERED_COUNTERS), set(REQUEST_COUNTERS), several)
    assert set().union(*parts) == set(page_layout.COUNTERS)
    assert sum(map(len, parts)) == len(page_layout.COUNTERS) <= page_layout.LANE_WORDS
