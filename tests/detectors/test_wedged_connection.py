"""wedged-connection on both sides of each limit: absent keys, keys stored anew, slow but honest."""

from __future__ import annotations

import pytest

from detectors import thresholds as t
from detectors.wedged_connection import RULE
from exporters import reasons
from tests.detectors.client_pictures import (
    BLOCKING_SECONDS,
    CONNECTIONS,
    INFO,
    SHARD,
    clear,
    entry,
    rank,
    series,
    shard,
)

LIMIT = t.STUCK_TIMEOUTS * BLOCKING_SECONDS
KEYS = [f"key7-{i}" for i in range(8)]
LATE = {**INFO, "overdue": [{"kind": "get", "key_count": 8, "keys": KEYS}]}


def _get(age=3.0, *more, kind="get", **changes):
    return rank(pending=(entry(kind, age), *more), **{"info": LATE, **changes})


def _keys(*absent, **changes):
    return shard(keys={key: key not in absent for key in KEYS}, **changes)


def test_a_get_of_a_key_that_is_absent_is_wedged_at_once():
    [finding] = RULE(series(_get(), _keys(KEYS[5]))).findings
    assert (finding.id, finding.cause) == ("wedged-connection", "missing-key")
    assert (finding.rank, finding.shard, finding.severity) == (1, SHARD, "critical")
    assert "1 of 8 keys" in finding.summary
    assert KEYS[5] in finding.evidence[1].text
    assert finding.confidence == 0.97


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_two_answers_a_second_apart_are_needed(answers):
    verdict = RULE(
        series(_get(), lambda ago: _keys(KEYS[5]) if ago < answers else shard(), count=3)
    )
    assert bool(verdict.findings) == (answers >= 2)


def test_a_key_that_is_there_in_one_of_them_is_not_absent():
    verdict = RULE(series(_get(), lambda ago: _keys() if ago == 1 else _keys(KEYS[5])))
    assert verdict.findings == ()


def test_a_get_that_is_answered_between_pictures_is_another_one():
    def moving(ago):
        return rank(pending=(entry("get", 3.0 + ago, number=9 - ago),), info=LATE)

    assert RULE(series(moving, _keys(KEYS[5]))).findings == ()


def test_answers_from_before_the_get_count_for_nothing():
    """The same keys were absent before it began: they may have been stored since."""
    picture = series(_get(1.2), _keys(KEYS[5]))
    assert RULE(picture).findings == (), "0.2 s old in the picture before: too young to judge by"
    assert RULE(series(_get(1.6), _keys(KEYS[5]))).findings


def test_keys_that_are_all_there_are_a_slow_shard():
    verdict = RULE(series(_get(), _keys()))
    assert (verdict.findings, verdict.abstained, verdict.again) == ((), "", False)


def test_what_the_shard_still_sends_is_under_way():
    assert RULE(series(_get(), _keys(KEYS[5], clients=clear(output_bytes=9)))).findings == ()


@pytest.mark.parametrize(("over", "fires"), [(-0.01, False), (0.01, True)])
def test_keys_stored_anew_leave_it_wedged_beyond_its_timeout(over, fires):
    findings = RULE(series(_get(LIMIT + 2 + over), _keys())).findings
    assert [f.cause for f in findings] == (["unanswered"] if fires else [])
    if fires:
        assert "stored anew" in findings[0].evidence[1].text
        assert findings[0].confidence == 0.8


def test_beyond_its_timeout_what_is_still_owed_cannot_be_told():
    verdict = RULE(series(_get(LIMIT + 5), _keys(clients=clear(output_bytes=9))))
    assert (verdict.findings, verdict.reason) == ((), reasons.OUTSTANDING)


def test_without_the_shard_only_the_timeout_tells_at_half_the_confidence():
    assert RULE(series(_get(LIMIT, shard=""))).findings == ()
    [finding] = RULE(series(_get(LIMIT + 5, shard=""))).findings
    assert (finding.cause, finding.confidence) == ("unanswered", 0.4)
    assert "no --valkey URL" in finding.evidence[1].text


def test_a_set_that_is_never_answered_holds_its_connection_too():
    [finding] = RULE(series(_get(LIMIT + 5, kind="set"), _keys())).findings
    assert "SET" in finding.summary


def test_one_finding_a_rank_tells_what_waits_behind_it():
    process = _get(20.0, entry("get", 9.0, number=8), entry("exists", 8.0, number=9))
    [finding] = RULE(series(process, _keys(KEYS[5]))).findings
    assert "2 later operations" in finding.evidence[-1].text


@pytest.mark.parametrize(
    "server",
    [
        _keys(KEYS[5], up=False, reason=reasons.TIMEOUT),
        _keys(KEYS[5], info={"loading": 1}),
    ],
)
def test_a_shard_that_is_down_explains_it(server):
    assert RULE(series(_get(60.0), server)).findings == ()


def test_a_frozen_rank_is_not_wedged():
    assert RULE(series(_get(60.0, liveness="frozen"), _keys(KEYS[5]))).findings == ()


@pytest.mark.parametrize(("age", "asks"), [(0.99, 0), (1.0, 1)])
def test_the_shard_is_asked_for_the_whole_keys_of_late_gets_alone(age, asks):
    asked = RULE.questions(series(_get(age * t.GET_SUSPECT_SECONDS), _keys(), count=1))
    assert [(q.connections, q.keys) for q in asked] == [(CONNECTIONS, tuple(KEYS))] * asks


def test_where_the_page_lists_no_keys_the_first_is_asked_for():
    [question] = RULE.questions(series(_get(info=INFO), _keys(), count=1))
    assert question.keys == ("key7",)


def test_the_keys_of_another_call_are_not_taken_for_its_own():
    listed = [
        {"kind": "get", "key_count": 8, "keys": ["other-0"]},
        {"kind": "get", "key_count": 3, "keys": KEYS[:3]},
        "junk",
        {"kind": "get", "key_count": 8, "keys": None},
    ]
    [question] = RULE.questions(series(_get(info={**INFO, "overdue": listed}), _keys(), count=1))
    assert question.keys == ("key7",)


def test_one_picture_asks_for_another():
    assert RULE(series(_get(), shard(), count=1)).again
    assert not RULE(series(_get(0.3), shard(), count=1)).again
    assert not RULE(series(_get(3.0, shard=""), count=1)).again, "nobody to ask"
