"""Durations of rules, scaled together: a rule shrunk for a test differs in nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_UNITS: Final = (("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_SMALLEST_MILLISECONDS: Final = 1


class ScaleError(ValueError):
    """A scale that no duration can be multiplied by."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiplies every duration of the rules by `factor` (1 is what is shipped)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1000:
            raise ScaleError(f"a time scale is above 0 and at most 1000, not {self.factor:g}")

    def text(self, seconds: float) -> str:
        """Seconds as Prometheus writes them: 300 -> "5m", and "6s" at a factor of 0.02."""
        left = max(_SMALLEST_MILLISECONDS, round(seconds * self.factor * 1000))
        for unit, milliseconds in _UNITS:
            if left % milliseconds == 0:
                return f"{left // milliseconds}{unit}"
        return f"{left}ms"

    def seconds(self, seconds: float) -> str:
        """The same as a plain number of seconds, for predict_linear."""
        return f"{seconds * self.factor:g}"
