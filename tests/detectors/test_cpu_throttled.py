"""cpu-throttled: the CPU was taken from a rank that the others wait for."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.cpu_throttled import RULE
from tests.detectors.fleet_pictures import SIZE, less, picture, ranks, since
from tests.detectors.pictures import NOW, group, quiet, second

END = int(NOW)
LATE = group([second(at, SIZE, late=1) for at in range(END - 30, END + 1)], SIZE)
EVEN = group([quiet(at, SIZE) for at in range(END - 30, END + 1)], SIZE)


def took(name, share, groups=(LATE,), others=0.01, seconds=4.0):
    """Rank 1's counter moved by that share of the time, the others' by `others`."""

    def counters(rank):
        return {name: int((share if rank == 1 else others) * seconds * 1e9)}

    processes = tuple(dataclasses.replace(p, counters=counters(p.rank)) for p in ranks())
    now = picture(processes, groups=groups)
    return since(now, seconds, lambda p: less(**p.counters)(p))


@pytest.mark.parametrize(
    ("name", "share", "cause"),
    [("throttled_nanoseconds", 0.2, "quota"), ("runqueue_nanoseconds", 0.4, "shared-core")],
)
def test_who_took_it(name, share, cause):
    [finding] = RULE(took(name, share)).findings
    assert (finding.rank, finding.cause) == (1, cause)
    assert all(e.value >= e.limit for e in finding.evidence)


@pytest.mark.parametrize(
    "snapshot",
    [
        took("throttled_nanoseconds", 0.05),
        took("runqueue_nanoseconds", 0.15),
        took("runqueue_nanoseconds", 0.4, others=0.3),  # a busy host: nobody is set apart
        took("runqueue_nanoseconds", 0.4, groups=(EVEN,)),  # and nobody waits
        took("throttled_nanoseconds", 0.5, groups=(EVEN,)),
    ],
    ids=["little quota", "little queue", "all alike", "none waits", "none waits, quota"],
)
def test_turning_any_of_it_turns_the_verdict(snapshot):
    verdict = RULE(snapshot)
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_one_picture_asks_for_another_only_where_ranks_wait():
    verdict = RULE(picture(ranks(), groups=(LATE,)))
    assert (verdict.findings, verdict.again) == ((), True)
    quiet_verdict = RULE(picture(ranks(), groups=(EVEN,)))
    assert (quiet_verdict.abstained, quiet_verdict.again) == ("", False)
