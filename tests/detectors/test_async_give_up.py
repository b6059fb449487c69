"""async-give-up: prefetches that took longer than their lookup waits."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.async_give_up import RULE
from exporters import reasons
from exporters.snapshot import Operation
from tests.detectors.fleet_pictures import facts, picture, ranks
from tests.detectors.pictures import NOW


def prefetches(late=5, of=20, took=4.0, age=10.0, on=(1,), **changes):
    info = facts(async_loading=True, **changes)
    processes = []
    for process in ranks(info=info):
        slow = late if process.rank in on else 0
        done = tuple(
            Operation(
                "lookup", NOW - age - (took if n < slow else 0.5), NOW - age, 512, 0, n + 1, 0
            )
            for n in range(of)
        )
        processes.append(dataclasses.replace(process, operations=done))
    return picture(tuple(processes))


def test_the_rank_its_shard_and_the_share():
    [finding] = RULE(prefetches()).findings
    assert (finding.rank, finding.shard) == (1, "redis://v-1:6379")
    assert "25%" in finding.summary


def test_all_ranks_are_nobody_in_particular():
    [finding] = RULE(prefetches(on=(0, 1, 2, 3))).findings
    assert (finding.rank, "4 ranks" in finding.summary) == (None, True)
    assert finding.shard is None


@pytest.mark.parametrize(
    "changes",
    [
        {"late": 2},
        {"late": 3, "of": 40},
        {"took": 2.9},
        {"age": 61.0},
        {"async_loading": False},
    ],
)
def test_turning_any_of_it_turns_the_verdict(changes):
    info = facts(**{"async_loading": True, **changes}) if "async_loading" in changes else None
    snapshot = picture(ranks(info=info)) if info else prefetches(**changes)
    verdict = RULE(snapshot)
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_a_page_without_a_timeout_is_said():
    assert RULE(prefetches(timeouts={})).reason == reasons.NOT_HOOKED
