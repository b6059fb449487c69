"""Every query parses, and reads only what something emits, by labels that it has."""

from __future__ import annotations

import json
import re

import pytest

from dashboards import foreign, recording
from dashboards.boards import BOARDS
from dashboards.durations import Scale
from dashboards.metric_names import emitted, named_in
from dashboards.promql import pick, rate
from dashboards.rule_files import groups
from dashboards.rule_model import Recording
from exporters import catalog
from tests.dashboards.promql_tree import selected

TARGET_LABELS = {"cluster", "namespace", "pod", "instance", "job"}
VLLM_LABELS = {"model_name", "engine", "le"}
OF_BOARDS = {
    f"{board.uid}: {panel.title} {i}": target.expr
    for board in BOARDS
    for panel in board.panels()
    for i, target in enumerate(panel.targets)
}
OF_RULES = {
    f"{getattr(rule, 'record', None) or rule.name} {i}": rule.expr
    for group in groups(Scale())
    for i, rule in enumerate(group.rules)
}
ALL = {**OF_BOARDS, **OF_RULES}
RECORDED = {rule.record: rule for rule in recording.recordings(Scale())}
LABELS = {
    name: {*metric.labels, *(("le",) if name.endswith("_bucket") else ())}
    for metric in catalog.METRICS
    for name in catalog.series_names(metric)
}
COUNTERS = {
    name
    for metric in catalog.METRICS
    for name in catalog.series_names(metric)
    if metric.type != "gauge"
} | {n for n in foreign.VLLM_METRICS if n.endswith(("_sum", "_count", "_bucket"))}
# Of a counter these tell whether it is there, not how high it stands.
PRESENCE = {"count", "absent"}


def labels_of(metric: str) -> set[str]:
    if metric in RECORDED:
        levels = re.findall(r"by \(([^)]*)\)", RECORDED[metric].expr)
        return {label for level in levels for label in level.split(", ")}
    if metric in foreign.VLLM_METRICS:
        return TARGET_LABELS | VLLM_LABELS
    return TARGET_LABELS | LABELS.get(metric, set())


@pytest.mark.parametrize("where", ALL)
def test_a_query_parses_and_every_metric_in_it_has_an_emitter(where):
    found = selected(ALL[where])
    assert found or ALL[where] == "vector(1)"
    assert {s.metric for s in found} <= emitted()
    for selector in found:
        assert set(selector.labels) <= labels_of(selector.metric), selector


@pytest.mark.parametrize("where", ALL)
def test_a_counter_is_read_by_its_growth_and_a_gauge_is_not(where):
    for selector in selected(ALL[where]):
        grows = bool({"rate", "increase"} & set(selector.inside))
        if selector.metric in COUNTERS:
            assert grows or PRESENCE & set(selector.inside), selector
        else:
            assert not grows, selector


@pytest.mark.parametrize("where", ALL)
def test_absence_is_never_hidden(where):
    assert not re.search(r"\bor\s+vector\b", ALL[where])


@pytest.mark.parametrize("where", OF_BOARDS)
def test_a_rate_of_a_board_is_summed_and_follows_its_time_range(where):
    query = OF_BOARDS[where]
    assert set(re.findall(r"\[([^\]]+)\]", query)) <= {"$__rate_interval"}
    for selector in selected(query):
        if "rate" in selector.inside:
            assert {"sum", "avg", "max"} & set(selector.inside), selector


def test_the_metrics_of_vllm_are_in_its_source():
    from tests.dashboards.vllm_source import names

    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in foreign.VLLM_METRICS}
    assert bare <= names()


def test_vllm_takes_buckets_as_the_runbook_gives_them():
    from runbooks.library import load_page
    from tests.dashboards.vllm_source import text_of

    found = re.search(
        r"(--custom-histogram-buckets) '(\{[^']*\})'", load_page("ttft-gate").text, re.DOTALL
    )
    [(family, bounds)] = json.loads(found[2]).items()
    assert set(recording.TTFT_LIMITS_SECONDS) <= set(bounds) and bounds == sorted(bounds)
    assert found[1] in text_of("config/observability.py")
    assert f'"{family}"' in text_of("v1/metrics/buckets.py")


def test_what_a_query_names_is_told_apart_from_its_strings():
    assert named_in(['up{job="stallscope_steps_total"} == 0']) == ["up"]
    assert named_in(["count(up) and up", "up"]) == ["up"]


def test_a_gauge_has_no_rate():
    assert rate(catalog.TICKS, 'a="b"', window="1m") == ('rate(stallscope_ticks_total{a="b"}[1m])')
    assert pick(catalog.TICK_AGE) == "stallscope_tick_age_seconds"
    with pytest.raises(ValueError, match="gauge"):
        rate(catalog.TICK_AGE)


def test_a_recorded_series_counts_what_it_costs():
    """By its level: one series an engine, or as many as its other label has values."""
    values = {"tier": 2, "severity": 2}
    for rule in RECORDED.values():
        assert isinstance(rule, Recording)
        level = rule.record.partition(":")[0]
        cost = 0
        if level.startswith("engine"):
            cost = values.get(level.removeprefix("engine").strip("_"), 1)
        assert rule.series_a_pod == cost, rule.record
