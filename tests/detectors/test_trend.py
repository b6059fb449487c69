"""Theil and Sen's line: right on lines, steady in noise, honest bounds."""

from __future__ import annotations

import random

import pytest

from detectors.trend import theil_sen


def test_a_line_is_itself():
    found = theil_sen([0, 1, 2, 3, 4], [5, 7, 9, 11, 13], 0.9)
    assert (found.slope, found.slope_low, found.slope_high, found.level) == (2, 2, 2, 13)


def test_one_wild_point_moves_nothing():
    values = [float(i) for i in range(15)]
    values[7] = 1e6
    assert theil_sen(range(15), values, 0.9).slope == pytest.approx(1.0)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_points_have_no_line(count):
    assert theil_sen(range(count), range(count), 0.9) is None


def test_points_at_one_time_have_no_slope():
    assert theil_sen([3.0] * 6, range(6), 0.9) is None


@pytest.mark.parametrize("count", [8, 30])
def test_the_bounds_hold_the_slope_as_often_as_they_say(count):
    rng = random.Random(4)
    held = 0
    for _ in range(300):
        values = [0.5 * i + rng.gauss(0, 3) for i in range(count)]
        line = theil_sen(range(count), values, 0.9)
        held += line.slope_low <= 0.5 <= line.slope_high
    assert 0.86 <= held / 300 <= 0.97
