"""A straight line through noisy points that a burst does not bend: Theil and Sen's, with bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

_LEAST_POINTS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """`slope` per second, of which `slope_low` and `slope_high` are the bounds of the confidence
    asked for; `level` is the line's value at the last point."""

    slope: float
    slope_low: float
    slope_high: float
    level: float


def theil_sen(
    at_seconds: Sequence[float], values: Sequence[float], confidence: float
) -> Line | None:
    """The median of the slopes between all pairs; bounds by Kendall's tau (Sen 1968, section 2.6).
    None under five points. Points at the same time say nothing of a slope."""
    pairs = list(zip(at_seconds, values, strict=True))
    if len(pairs) < _LEAST_POINTS:
        return None
    slopes = sorted(
        (b - a) / (t - s) for i, (s, a) in enumerate(pairs) for t, b in pairs[i + 1 :] if t > s
    )
    if not slopes:
        return None
    n = len(pairs)
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * spread
    last = len(slopes) - 1
    low = max(0, math.floor((len(slopes) - reach) / 2) - 1)
    high = min(last, math.ceil((len(slopes) + reach) / 2))
    slope = median(slopes)
    end = at_seconds[-1]
    level = median(value + slope * (end - at) for at, value in pairs)
    return Line(slope, slopes[low], slopes[high], level)
