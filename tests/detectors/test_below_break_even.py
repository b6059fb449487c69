"""below-break-even: what loads that are alone deliver, against s R; either may be unsure."""

from __future__ import annotations

import dataclasses

import pytest

from detectors.below_break_even import RULE, interval
from exporters import reasons
from exporters.snapshot import EngineModel, Operation, Snapshot
from tests.detectors.pictures import NOW, engine, worker

SIZE = 2
CHUNK = 256
TOKEN_BYTES = 48_000.0
TOKENS = 16 * CHUNK
RATES = (52e3, 53e3, 54e3, 53.5e3, 52.5e3)  # break-even about 2.5 GB/s
SLOW = TOKENS * TOKEN_BYTES / 0.89e9
FAST = TOKENS * TOKEN_BYTES / 10e9


def load(begin, seconds, tokens=TOKENS, tier="l2"):
    return Operation("load", begin, begin + seconds, tokens, tokens // CHUNK, 1, 0, tier)


def picture(seconds=SLOW, count=6, every=3.0, rates=RATES, tier="l2", tokens=TOKENS, shift=0.0):
    """Both ranks load the same prompts; rank 1 a little later, and `shift` later still."""
    took = seconds if isinstance(seconds, list) else [seconds] * count
    workers = tuple(
        worker(
            rank,
            SIZE,
            info={"chunk_tokens": CHUNK},
            operations=tuple(
                load(NOW - 60 + every * i + rank * (0.001 + shift), s, tokens, tier)
                for i, s in enumerate(took)
            ),
        )
        for rank in range(SIZE)
    )
    made = dataclasses.replace(
        engine(SIZE, processes=workers), model=EngineModel((), TOKEN_BYTES, 1, 1.0, rates)
    )
    return Snapshot(NOW, 1.7e9, engines=(made,))


def test_a_slow_tier_is_named():
    [finding] = RULE(picture()).findings
    assert finding.severity == "warning"
    assert "35% of break-even" in finding.summary
    tier, _ = finding.evidence
    assert tier.value == pytest.approx(0.89e9, rel=0.01)
    assert tier.limit == pytest.approx(TOKEN_BYTES * 53e3)
    assert "B* = s R is 2.50 to 2.59 GB/s" in tier.text


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": FAST},
        {"count": 4},
        {"rates": RATES[:4]},
        {"rates": tuple(rate / 4 for rate in RATES)},  # an engine that is slow itself
        {"tier": "l1"},
        {"tier": "mixed"},
        {"tokens": 15 * CHUNK},
        {"every": 0.1},  # each overlaps the next: the tier is shared, and looks slower than it is
    ],
    ids=str,
)
def test_turning_any_of_it_turns_the_verdict(changes):
    verdict = RULE(picture(**changes))
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_a_prompt_is_loaded_when_its_last_rank_has_it():
    [finding] = RULE(picture(shift=SLOW / 2)).findings
    assert finding.evidence[0].value == pytest.approx(0.89e9 / 1.5, rel=0.01)


def test_intervals_that_overlap_decide_nothing():
    near = [TOKENS * TOKEN_BYTES / (2.5e9 * f) for f in (0.9, 0.95, 0.99, 1.02, 1.05, 1.1)]
    verdict = RULE(picture(seconds=near))
    assert (verdict.findings, verdict.reason) == ((), reasons.CANNOT_TELL)


def test_a_load_of_another_engine_is_another_load():
    one = picture()
    [of_one] = one.engines
    # One rank of it is enough, that loads while ours do.
    [rank, *_] = of_one.processes
    other = dataclasses.replace(of_one, engine_id="other", processes=(rank,))
    found = RULE(dataclasses.replace(one, engines=(of_one, other))).findings
    assert [f.engine_id for f in found] == []


def test_a_second_prompt_of_the_same_engine_is_another_load():
    one = picture()
    [made] = one.engines
    first, second = made.processes
    twice = tuple(
        o
        for at in first.operations
        for o in (at, dataclasses.replace(at, start_seconds=at.end_seconds - 0.001))
    )
    crowded = dataclasses.replace(
        made, processes=(dataclasses.replace(first, operations=twice), second)
    )
    assert RULE(dataclasses.replace(one, engines=(crowded,))).findings == ()


def test_an_interval_of_few_is_all_of_them():
    assert interval([3.0, 1.0, 2.0, 5.0, 4.0]) == dataclasses.replace(
        interval([1.0]), low=1.0, middle=3.0, high=5.0
    )
    many = interval([float(i) for i in range(101)])
    assert many.middle == 50
    assert 38 <= many.low < 50 < many.high <= 62
