"""evicted-before-load: the cause of a missing key, where the shard says that it evicts."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import ALL_RULES
from detectors import thresholds as t
from detectors.evicted_before_load import RULE
from exporters.evaluator import worst_first
from tests.detectors.client_pictures import SHARD, rank, series
from tests.detectors.test_wedged_connection import KEYS, _get, _keys

FULL = {"run_id": "a", "uptime_in_seconds": 9000, "maxmemory": 1000, "used_memory": 990}


def _server(evicted=5, rising=0, absent=(KEYS[5],), **info):
    def at(ago):
        return _keys(*absent, info={**FULL, "evicted_keys": evicted - rising * ago, **info})

    return at


def test_eviction_at_the_limit_is_the_cause_of_a_missing_key():
    picture = series(_get(), _server())
    [finding] = RULE(picture).findings
    assert (finding.id, finding.rank, finding.shard) == ("evicted-before-load", 1, SHARD)
    assert (finding.severity, finding.cause, finding.confidence) == ("critical", "eviction", 0.75)
    found = [f for rule in ALL_RULES for f in rule(picture).findings]
    order = {rule.name: i for i, rule in enumerate(ALL_RULES)}
    assert [f.id for f in worst_first(found, order)] == ["evicted-before-load", "wedged-connection"]


@pytest.mark.parametrize(("share", "fires"), [(0.999, False), (1.001, True)])
def test_memory_must_be_at_its_limit(share, fires):
    used = int(1000 * t.MEMORY_FULL_SHARE * share)
    assert bool(RULE(series(_get(), _server(used_memory=used))).findings) == fires


def test_or_keys_go_right_now():
    [finding] = RULE(series(_get(), _server(used_memory=10, rising=1))).findings
    assert finding.confidence == 0.9
    assert "2 of them in the last 2 s" in finding.evidence[1].text


def test_a_shard_that_never_evicted_is_not_the_cause():
    assert RULE(series(_get(), _server(evicted=0))).findings == ()


def test_a_shard_that_started_since_lost_its_keys_by_that():
    assert RULE(series(_get(), _server(uptime_in_seconds=2))).findings == ()


def test_a_restart_is_no_rising_count():
    def at(ago):
        count = 5 if ago == 0 else 2  # of another life, so that its difference says nothing
        return _keys(
            KEYS[5],
            info={**FULL, "evicted_keys": count, "used_memory": 10, "run_id": f"{ago > 0}"},
        )

    assert RULE(series(_get(), at)).findings == ()


def test_keys_that_are_there_were_not_evicted():
    assert RULE(series(_get(), _server(rising=1, absent=()))).findings == ()


def _missing(failed=4, loaded=0):
    """A client that takes a missing key for a miss: `failed` keys a second, chunks it reports."""

    def at(ago):
        back = 10 - ago
        counters = {
            "client_get_answered_keys": 8 * back,
            "client_get_failed_keys": failed * back,
            "load_l2_chunks": (8 - failed + loaded) * back,
        }
        return dataclasses.replace(rank(), counters=counters)

    return at


def test_keys_missed_while_the_shard_evicts_are_a_warning():
    [finding] = RULE(series(_missing(), _server(rising=1))).findings
    assert (finding.severity, finding.rank) == ("warning", 1)
    assert "8 of 16 keys" in finding.summary


@pytest.mark.parametrize(
    ("process", "server"),
    [
        (_missing(failed=0), _server(rising=1)),
        (_missing(), _server(rising=0)),
        (_missing(loaded=4), _server(rising=1)),  # garbage is load-mismatch, whatever else
    ],
)
def test_both_must_rise_and_the_load_be_honest(process, server):
    assert RULE(series(process, server)).findings == ()
