"""load-mismatch: chunks reported against keys that came, over stretches that began at rest."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.load_mismatch import RULE
from exporters import reasons
from exporters.snapshot import Operation
from tests.detectors.client_pictures import entry, rank, series
from tests.detectors.pictures import NOW


def _counts(answered, failed, loaded, **changes):
    counters = {
        "client_get_answered_keys": answered,
        "client_get_failed_keys": failed,
        "load_l2_chunks": loaded,
    }
    return dataclasses.replace(rank(), counters=counters, **changes)


@pytest.mark.parametrize(
    ("answered", "failed", "loaded", "excess"),
    [
        (100, 8, 100, 8),
        (100, 8, 93, 1),
        (100, 8, 92, 0),  # what came, and no more
        (100, 8, 40, 0),  # loads that were given up
        (100, 0, 100, 0),
        (0, 0, 0, 0),
    ],
)
def test_no_more_chunks_than_keys_that_came(answered, failed, loaded, excess):
    findings = RULE(series(_counts(answered, failed, loaded), count=1)).findings
    assert [f.evidence[1].value for f in findings] == ([excess] if excess else [])
    if excess:
        assert (findings[0].severity, findings[0].rank) == ("critical", 1)
        assert f"{excess} chunks as loaded" in findings[0].summary


def test_given_up_loads_of_long_ago_hide_nothing():
    """50 chunks came and were never reported; 8 that did not come were, since the last look."""

    def at(ago):
        return _counts(158, 8, 108) if ago == 0 else _counts(150, 0, 100)

    [finding] = RULE(series(at, count=2)).findings
    assert finding.evidence[1].value == 8


@pytest.mark.parametrize(
    "busy",
    [
        {"pending": (entry("get", 5.0),)},
        {"pending": (entry("prefetch", 5.0),)},
        {"marks": {"load_started": NOW - 2, "load_finished": NOW - 3}},
    ],
)
def test_a_stretch_that_began_amid_a_load_counts_its_end_for_nothing(busy):
    """8 came before the picture and were reported after it; 8 that failed were not reported."""

    def at(ago):
        return _counts(116, 8, 108, **busy) if ago == 0 else _counts(108, 0, 100, **busy)

    assert RULE(series(at, count=2)).findings == ()
    quiet = series(lambda ago: _counts(116, 8, 108) if ago == 0 else _counts(108, 0, 100), count=2)
    assert RULE(quiet).findings, "the same at rest is a mismatch"


def test_another_life_of_the_process_is_no_begin():
    def at(ago):
        return dataclasses.replace(
            _counts(100, 8, 92) if ago == 0 else _counts(50, 0, 10), incarnation=1 + ago
        )

    assert RULE(series(at, count=2)).findings == ()


def test_it_began_no_later_than_the_last_load_from_the_shard():
    loads = tuple(
        Operation("load", NOW - 9, NOW - end, 256, 1, 9, 0, tier)
        for end, tier in ((8.0, "l2"), (5.0, "mixed"), (2.0, "l1"))
    )
    [finding] = RULE(series(_counts(100, 8, 100, operations=loads), count=1)).findings
    assert finding.since_seconds == pytest.approx(5.0)


def test_a_client_whose_results_are_not_seen_cannot_be_told():
    verdict = RULE(series(_counts(0, 0, 100), count=1))
    assert (verdict.findings, verdict.reason) == ((), reasons.NOT_HOOKED)


def test_a_rank_that_loads_nothing_from_a_shard_is_decided():
    assert RULE(series(rank(), count=1)).abstained == ""
