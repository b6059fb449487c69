"""half-a-group: collectives end without ranks that are seen here."""

from __future__ import annotations

import pytest

from detectors import ALL_RULES
from detectors.half_a_group import RULE
from tests.detectors.fleet_pictures import less, picture, ranks, since
from tests.detectors.pictures import group_with_open, opened


def half(collectives=50, groups=(), seen=2):
    processes = ranks(counters={"collectives": 900})[:seen]
    return since(picture(processes, groups=groups), 2.0, less(collectives=collectives))


def test_it_is_said_and_nobody_is_blamed():
    snapshot = half()
    [finding] = RULE(snapshot).findings
    assert (finding.severity, finding.rank) == ("info", None)
    assert "only 2 of 4 ranks" in finding.summary
    assert {f.id for r in ALL_RULES for f in r(snapshot).findings} == {"half-a-group"}


@pytest.mark.parametrize(
    "snapshot",
    [
        half(collectives=0),
        half(seen=4),
        half(groups=(group_with_open(4, (opened(9.0, (0, 1), (2, 3)),)),)),
    ],
    ids=["nothing ends", "all are here", "they are waited for"],
)
def test_turning_any_of_it_turns_the_verdict(snapshot):
    assert RULE(snapshot).findings == ()


def test_one_picture_asks_for_another():
    assert RULE(picture(ranks()[:2])).again
