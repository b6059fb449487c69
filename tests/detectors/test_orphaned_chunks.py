"""orphaned-chunks: one rank cuts the prefix of many lookups while all others hold more."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.orphaned_chunks import RULE
from exporters import reasons
from exporters.snapshot import Operation
from tests.detectors.fleet_pictures import CHUNK, facts, picture, ranks
from tests.detectors.pictures import NOW


def lookups(answers, age=10.0, info=None):
    """An engine that was asked once for each of `answers`: chunks found, by rank."""
    processes = []
    for process in ranks(info=info):
        done = tuple(
            Operation("lookup", NOW - age - 1, NOW - age, a[process.rank] * CHUNK, 0, n + 1, 0)
            for n, a in enumerate(answers)
        )
        processes.append(dataclasses.replace(process, operations=done))
    return picture(tuple(processes))


HEALTHY = (40, 41, 42, 43)
CUT = (40, 41, 2, 43)


def test_the_rank_and_its_cost():
    [finding] = RULE(lookups([HEALTHY] * 8 + [CUT] * 4)).findings
    assert (finding.rank, finding.shard) == (2, "redis://v-2:6379")
    assert [e.value for e in finding.evidence] == [0.4, 4 * 38.0]


@pytest.mark.parametrize(
    "answers",
    [
        [HEALTHY] * 20,
        [(0, 0, 0, 0)] * 20,
        [HEALTHY] * 18 + [CUT] * 2,  # too seldom
        [CUT] * 10 + [HEALTHY] * 10,  # and over
        [(40, 41, 39, 42)] * 20,  # where a prefix ends
        [HEALTHY] * 6 + [(4, 4, 2, 4)] * 4,  # often, but of little worth
    ],
)
def test_turning_any_of_it_turns_the_verdict(answers):
    verdict = RULE(lookups(answers))
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_few_or_old_lookups_decide_nothing():
    assert RULE(lookups([CUT] * 9)).reason == reasons.TOO_FEW
    assert RULE(lookups([CUT] * 20, age=61)).reason == reasons.TOO_FEW


def test_one_shard_for_all_has_no_owners():
    assert not RULE(lookups([CUT] * 20, info=facts(shard_url="resp://v:1"))).abstained
