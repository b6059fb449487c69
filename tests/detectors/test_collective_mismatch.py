"""collective-mismatch: different operations at one place of the order."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.collective_mismatch import RULE
from exporters.snapshot import Mismatch
from tests.detectors.fleet_pictures import picture, ranks
from tests.detectors.pictures import NOW, group, quiet


def group_with(*mismatches, size=4):
    made = group([quiet(at, size) for at in range(900, 999)], size)
    return dataclasses.replace(made, mismatches=mismatches)


@pytest.mark.parametrize(
    ("ops", "rank"),
    [
        (("all_gather", "all_gather", "broadcast", "all_gather"), 2),
        (("", "all_gather", "broadcast", "all_gather"), 2),
        (("all_gather", "all_gather", "broadcast", "broadcast"), None),
        (("all_gather", "", "", "broadcast"), None),
    ],
)
def test_the_odd_rank_where_there_is_one(ops, rank):
    mismatch = Mismatch(17, ops, NOW - 5)
    [finding] = RULE(picture(ranks(), groups=(group_with(mismatch),))).findings
    assert (finding.rank, finding.since_seconds) == (rank, 5.0)
    assert "number 17" in finding.summary
    assert "in broadcast" in finding.evidence[0].text


def test_the_first_of_several_is_told():
    first, later = (
        Mismatch(n, ("barrier", "all_gather", "barrier", "barrier"), NOW - 9) for n in (3, 4)
    )
    [finding] = RULE(picture(ranks(), groups=(group_with(later, first),))).findings
    assert "number 3" in finding.summary


def test_one_order_is_silent():
    verdict = RULE(picture(ranks(), groups=(group_with(),)))
    assert (verdict.findings, verdict.abstained) == ((), "")
