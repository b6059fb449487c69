"""stuck-lookup on both sides of each limit, and silent where something else explains it."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import ALL_RULES
from detectors import thresholds as t
from detectors.stuck_lookup import RULE
from exporters import reasons
from exporters.evaluator import worst_first
from tests.detectors.client_pictures import (
    BLOCKING_SECONDS,
    CONNECTIONS,
    INFO,
    LOOKUP_SECONDS,
    SHARD,
    clear,
    client,
    entry,
    rank,
    series,
    shard,
)
from tests.detectors.pictures import NOW, group_with_open, opened, worker

LIMIT = t.STUCK_TIMEOUTS * LOOKUP_SECONDS
OLD = LIMIT + 5  # beyond the limit in each of three pictures


def _stuck(*more, kind="exists", age=OLD, **changes):
    return rank(pending=(entry(kind, age), *more), **changes)


def test_an_exists_that_nothing_owes_is_a_lost_completion():
    [finding] = RULE(series(_stuck(), shard())).findings
    assert (finding.id, finding.cause) == ("stuck-lookup", "lost-completion")
    assert (finding.rank, finding.shard, finding.severity) == (1, SHARD, "critical")
    assert finding.confidence == 0.95
    assert finding.since_seconds == OLD
    assert "0 of the rank's 2 connections" in finding.evidence[1].text


@pytest.mark.parametrize(("over", "fires"), [(-0.01, False), (0.01, True)])
def test_the_age_must_exceed_the_limit_in_every_picture(over, fires):
    age = LIMIT + (t.PICTURES - 1) * 1.0 + over
    assert bool(RULE(series(_stuck(age=age), shard())).findings) == fires


@pytest.mark.parametrize(("count", "fires"), [(1, False), (2, False), (3, True), (9, True)])
def test_three_pictures_are_needed_and_asked_for(count, fires):
    verdict = RULE(series(_stuck(age=OLD + 9), shard(), count=count))
    assert (bool(verdict.findings), verdict.again) == (fires, not fires)


@pytest.mark.parametrize(("apart", "fires"), [(0.4, False), (0.94, True), (0.96, True)])
def test_pictures_must_be_apart(apart, fires):
    """Five pictures 0.4 s apart span 1.6 s: only two of them are a second apart."""
    assert bool(RULE(series(_stuck(), shard(), count=5, apart=apart)).findings) == fires


def test_another_id_in_each_picture_is_a_lookup_that_moves_on():
    def moving(ago):
        return rank(pending=(entry("exists", OLD + ago, number=7 - ago),))

    assert RULE(series(moving, shard())).findings == ()


@pytest.mark.parametrize(
    "owed",
    [{"query_bytes": 9}, {"argument_bytes": 9}, {"output_bytes": 9}, {"output_replies": 1}],
)
def test_what_the_shard_still_owes_is_not_lost(owed):
    clients = (client(**owed), client(CONNECTIONS[1]))
    verdict = RULE(series(_stuck(), shard(clients=clients)))
    assert (verdict.findings, verdict.reason) == ((), reasons.OUTSTANDING)


def test_a_connection_that_was_clear_once_owes_nothing_from_before():
    """Other calls come and go on the same connections."""

    def server(ago):
        return shard(clients=clear(output_bytes=1000 * (ago != 1), commands=100 - ago))

    [finding] = RULE(series(_stuck(), server)).findings
    assert "commands of theirs ran meanwhile" in finding.evidence[1].text


def test_redis_7_counts_no_commands():
    [finding] = RULE(series(_stuck(), shard(clients=clear(commands=None)))).findings
    assert "ran meanwhile" not in finding.evidence[1].text


@pytest.mark.parametrize(
    ("idle", "cause"),
    [(11, "lost-completion"), (12, "never-received")],
)
def test_a_request_that_the_shard_never_saw(idle, cause):
    assert 11 <= OLD + t.IDLE_SLACK_SECONDS < 12
    [finding] = RULE(series(_stuck(), shard(clients=clear(idle_seconds=idle)))).findings
    assert finding.cause == cause


@pytest.mark.parametrize(
    ("process", "server", "says"),
    [
        ({"shard": ""}, None, "no --valkey URL"),
        ({}, shard(clients=None), "does not show its clients"),
        ({}, shard(clients=()), "none of the rank's 2 connections"),
        ({"info": {}}, shard(), "does not list"),
    ],
)
def test_where_the_shard_is_unseen_it_is_said_and_the_confidence_halved(process, server, says):
    [finding] = RULE(series(_stuck(age=OLD + 30, **process), server)).findings
    assert finding.confidence == 0.95 / 2
    assert "unseen" in finding.summary
    assert says in finding.evidence[1].text


@pytest.mark.parametrize(
    "down",
    [
        {"up": False, "reason": reasons.TIMEOUT},
        {"up": False, "reason": reasons.CONNECTION_REFUSED},
        {"info": {"loading": 1}},
    ],
)
def test_a_shard_that_is_down_explains_it(down):
    assert RULE(series(_stuck(), shard(**down))).findings == ()


def test_so_does_one_that_was_down_a_moment_ago():
    def server(ago):
        return shard(up=ago != 2, reason=reasons.TIMEOUT if ago == 2 else "")

    assert RULE(series(_stuck(), server)).findings == ()


@pytest.mark.parametrize("liveness", ["frozen", "dead"])
def test_what_a_silent_rank_waits_for_says_nothing(liveness):
    assert RULE(series(_stuck(liveness=liveness), shard())).findings == ()


def test_a_wedged_connection_explains_what_waits_behind_it():
    wedge = entry("get", 60.0, number=3)
    assert RULE(series(_stuck(wedge), shard())).findings == ()


@pytest.mark.parametrize("kind", ["exists", "prefetch"])
@pytest.mark.parametrize(("is_async", "fires"), [(False, True), (True, False)])
def test_with_asynchronous_loading_a_wedge_of_another_rank_explains_it_too(is_async, fires, kind):
    info = {**INFO, "async_loading": is_async}
    other = rank(0, pending=(entry("get", 60.0, number=3),))
    assert bool(RULE(series(_stuck(kind=kind, info=info), shard(), others=(other,))).findings) == (
        fires
    )
    alone = series(_stuck(kind=kind, info=info), shard())
    assert RULE(alone).findings != ()


def test_a_wedge_of_a_younger_get_explains_it_too():
    """Its key is absent, which decides it long before its age would."""
    young = entry("get", 4.0, number=9)
    absent = shard(keys={"key9": False})
    picture = series(_stuck(young), absent)
    assert RULE(picture).findings == ()
    assert RULE(picture).abstained == ""


def test_behind_an_older_get_it_cannot_be_told():
    def passed(ago):
        older = entry("get", OLD + 1, number=3)
        return _stuck(older, entry("exists", 0.1 + ago, number=20 - ago))

    verdict = RULE(series(passed, shard()))
    assert (verdict.findings, verdict.reason) == ((), reasons.OUTSTANDING)
    assert "behind a GET" in verdict.abstained


def _busy(overtaken):
    """Later calls are under way in every picture; another one each time where they overtake."""

    def process(ago):
        # `series` takes the picture's age off again: the overtaking ones are 0.3 s old in each.
        number = 20 - ago if overtaken else 20
        return _stuck(entry("get", 0.3 + ago if overtaken else 2.3, number=number))

    return process


@pytest.mark.parametrize("overtaken", [True, False])
def test_an_entry_may_wait_its_turn_unless_later_ones_pass_it(overtaken):
    verdict = RULE(series(_busy(overtaken), shard()))
    assert bool(verdict.findings) == overtaken
    if not overtaken:
        assert verdict.reason == reasons.OUTSTANDING


def test_calls_that_came_and_went_between_pictures_passed_it_too():
    def process(ago):
        made = _busy(False)(ago)
        return dataclasses.replace(made, counters={"client_calls": 50 - 10 * ago})

    assert RULE(series(process, shard())).findings


def test_a_prefetch_that_nobody_answers_is_the_other_cause():
    [finding] = RULE(series(_stuck(kind="prefetch"), shard())).findings
    assert finding.cause == "no-answer"
    assert finding.confidence == 0.8


def test_a_prefetch_waits_its_turn_while_the_client_works():
    def process(ago):
        return _stuck(kind="prefetch", counters={"client_calls": 50 - ago})

    assert RULE(series(process, shard())).reason == reasons.OUTSTANDING


def test_a_prefetch_that_later_ones_pass_is_forgotten():
    def process(ago):
        later = entry("prefetch", 0.5 + ago, number=30 - ago)
        return _stuck(later, kind="prefetch", counters={"client_calls": 50 - ago})

    [finding] = RULE(series(process, shard())).findings
    assert finding.cause == "no-answer"


@pytest.mark.parametrize("kind", ["lookup", "store", "load"])
def test_an_entry_of_the_scheduler_ends_by_itself(kind):
    assert RULE(series(_stuck(kind=kind), shard())).findings == ()


def test_without_a_timeout_on_the_page_the_longest_default_holds():
    limit = t.STUCK_TIMEOUTS * t.UNKNOWN_TIMEOUT_SECONDS + 2
    for over, fires in ((-0.01, False), (0.01, True)):
        process = rank(pending=(entry("exists", limit + over, timeout_seconds=0.0),))
        assert bool(RULE(series(process, shard())).findings) == fires


@pytest.mark.parametrize("scale", [0.25, 4])
def test_the_limit_scales_with_the_timeout(scale):
    limit = LIMIT * scale + 2
    for over, fires in ((-0.01, False), (0.01, True)):
        process = rank(
            pending=(entry("exists", limit + over, timeout_seconds=LOOKUP_SECONDS * scale),)
        )
        assert bool(RULE(series(process, shard())).findings) == fires


@pytest.mark.parametrize(("age", "asks"), [(LOOKUP_SECONDS - 0.1, 0), (LOOKUP_SECONDS, 1)])
def test_the_shard_is_asked_from_the_timeout_on_and_never_before(age, asks):
    asked = RULE.questions(series(_stuck(age=age), shard(), count=1))
    assert len(asked) == asks
    assert all(q.connections == CONNECTIONS and not q.keys for q in asked)


def test_a_healthy_rank_is_silent_and_decided():
    verdict = RULE(series(_stuck(age=0.01), shard(clients=None)))
    assert (verdict.findings, verdict.abstained, verdict.again) == ((), "", False)
    assert BLOCKING_SECONDS > LOOKUP_SECONDS


def test_in_the_step_it_comes_before_the_rank_that_stays_away():
    """On the main thread it freezes the engine: the cause first, and the lockstep told with it."""
    step = {"step_started": NOW - 30, "step_finished": NOW - 40, "load_started": NOW - 29}
    stuck = _stuck(age=20.0, marks=step)
    other = worker(0, 2, marks=step)
    group = group_with_open(2, (opened(19.0, (0,), (1,)),))
    picture = series(stuck, shard(), others=(other,), groups=(group,))
    findings = [f for rule in ALL_RULES for f in rule(picture).findings]
    ordered = worst_first(findings, {rule.name: i for i, rule in enumerate(ALL_RULES)})
    assert [(f.id, f.rank) for f in ordered] == [("stuck-lookup", 1), ("rank-silent", 1)]
    assert "rank 0 wait" in ordered[0].evidence[-1].text
