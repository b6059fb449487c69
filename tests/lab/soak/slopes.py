"""Whether something grows: a least-squares slope with the upper end of its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_HOUR_SECONDS = 3600.0
_Z_95_TWO_SIDED = 1.96  # of hundreds of samples: the normal's is the t's


@dataclass(frozen=True)
class Slope:
    """Growth an hour as a share of the mean: the estimate, and the upper bound."""

    mean: float
    per_hour: float
    upper_per_hour: float


def slope(at_seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """Raises ValueError where there are fewer than three samples."""
    count = len(values)
    if count < 3:
        raise ValueError(f"{count} samples")
    mean_at, mean = math.fsum(at_seconds) / count, math.fsum(values) / count
    spread = math.fsum((at - mean_at) ** 2 for at in at_seconds)
    pairs = list(zip(at_seconds, values, strict=True))
    estimate = math.fsum((at - mean_at) * (value - mean) for at, value in pairs) / spread
    rest = math.fsum((value - mean - estimate * (at - mean_at)) ** 2 for at, value in pairs)
    error = math.sqrt(rest / (count - 2) / spread)
    scale = _HOUR_SECONDS / mean
    return Slope(mean, estimate * scale, (estimate + _Z_95_TWO_SIDED * error) * scale)
