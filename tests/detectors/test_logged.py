"""What only a log says: each rule on counts of pages, and of given logs."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import logged
from exporters import reasons
from exporters.log_lines import KINDS
from exporters.snapshot import LogCount
from tests.detectors.fleet_pictures import less, picture, ranks, since

RULES = (
    (logged.DEGRADED_RULE, "degraded"),
    (logged.REFCOUNT_RULE, "double_free"),
    (logged.REFCOUNT_RULE, "invalidated"),
    (logged.WRONG_GROUP_RULE, "wrong_group"),
    (logged.HANDOFF_RULE, "handoff_expired"),
)


def pages(seconds=2.0, fresh=True, **counts):
    counters = {**{f"log_{kind}": 0 for kind in KINDS}, **counts}
    now = picture(ranks(counters=counters))
    return since(now, seconds, less(**(counts if fresh else {})))


@pytest.mark.parametrize(("rule", "kind"), RULES)
def test_a_line_is_a_finding_and_none_is_none(rule, kind):
    [finding] = rule(pages(**{f"log_{kind}": 1})).findings
    assert finding.id == rule.name
    assert finding.evidence[0].value >= 1
    verdict = rule(pages())
    assert (verdict.findings, verdict.abstained) == ((), "")


@pytest.mark.parametrize(("rule", "kind"), RULES)
def test_a_log_that_was_given_says_the_same(rule, kind):
    given = dataclasses.replace(picture(ranks()), logs=(LogCount(kind, 3, "engine.log"),))
    assert [f.id for f in rule(given).findings] == [rule.name]


@pytest.mark.parametrize(("rule", "kind"), RULES)
def test_pages_that_count_no_lines_and_no_log_decide_nothing(rule, kind):
    verdict = rule(picture(ranks()))
    assert (verdict.findings, verdict.reason) == ((), reasons.NOT_ASKED)


def test_back_from_degraded_mode_is_well():
    assert logged.DEGRADED_RULE(pages(log_degraded=2, log_recovered=2)).findings == ()
    assert logged.DEGRADED_RULE(pages(log_degraded=2, log_recovered=1)).findings


def test_one_rank_that_came_back_is_no_comfort_for_another():
    away, back = (
        dataclasses.replace(p, counters={"log_degraded": p.rank == 0, "log_recovered": p.rank == 1})
        for p in ranks(2)
    )
    assert logged.DEGRADED_RULE(picture((away, back))).findings


def test_a_dead_process_has_said_what_it_said():
    dead = ranks(liveness="dead", counters={"log_invalidated": 1})
    assert logged.REFCOUNT_RULE(picture(dead)).findings


def test_a_pin_given_back_twice_is_none():
    """Measured: a healthy run of the stock engine logs it."""
    assert logged.REFCOUNT_RULE(pages(log_double_unpin=5)).findings == ()


def test_an_old_handoff_is_over_and_a_new_one_has_its_cause():
    assert logged.HANDOFF_RULE(pages(fresh=False, log_handoff_expired=5)).findings == ()
    [finding] = logged.HANDOFF_RULE(pages(log_handoff_failed=1)).findings
    assert finding.cause == "failed"
    assert logged.HANDOFF_RULE(
        picture(ranks(counters={"log_degraded": 0, "log_handoff_failed": 1}))
    ).again
