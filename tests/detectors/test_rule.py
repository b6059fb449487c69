"""What the rules share: chance, onset, windows."""

from __future__ import annotations

import math
import random

import pytest

from detectors import ALL_RULES
from detectors.rule import binomial_tail, onset, severity_of_loss, window_of
from tests.detectors.pictures import second


@pytest.mark.parametrize("trials", [1, 7, 60])
@pytest.mark.parametrize("probability", [1 / 8, 1 / 2, 0.9])
def test_the_binomial_tail_is_exact(trials, probability):
    for k in range(trials + 2):
        exact = math.fsum(
            math.comb(trials, i) * probability**i * (1 - probability) ** (trials - i)
            for i in range(k, trials + 1)
        )
        assert binomial_tail(k, trials, probability) == pytest.approx(exact, rel=1e-9, abs=1e-300)


def test_the_binomial_tail_of_large_counts():
    assert binomial_tail(36_000, 60_000, 1 / 8) < 1e-100
    assert binomial_tail(7_500, 60_000, 1 / 8) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_onset_finds_the_change(seed):
    rng = random.Random(seed)
    before, after = rng.randrange(0, 60), rng.randrange(5, 60)
    scores = [rng.gauss(-0.5, 0.3) for _ in range(before)] + [
        rng.gauss(0.5, 0.3) for _ in range(after)
    ]
    assert onset(scores) == pytest.approx(before, abs=3)


def test_onset_of_nothing():
    assert onset([]) == 0
    assert onset([-1.0, -2.0]) == 2


def test_a_window_divides_the_charge_by_those_who_wait():
    window = window_of([second(at, 4, 1, lost_seconds=0.5) for at in range(10)], 2, 8, 4)
    assert (window.wall_seconds, window.count) == (6, 120)
    assert window.lost_share(1) == pytest.approx(0.5)
    assert window.most_lost_share() == pytest.approx(0.5)


def test_severity():
    assert severity_of_loss(0.0999) == "warning"
    assert severity_of_loss(0.10) == "critical"


def test_every_rule_has_its_own_name_and_says_what_decides_it():
    names = [rule.name for rule in ALL_RULES]
    assert len(set(names)) == len(names)
    assert all(rule.decidable_from for rule in ALL_RULES)
