"""Says whether two runs of the same trace differ by more than chance would make them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from runbooks.replay.limits import quantile

MIN_REQUESTS: Final = 20  # below it, resampling says more than the data can
_RESAMPLES: Final = 2000
_SEED: Final = 1  # the same two files always give the same interval
_MAX_DRAWN: Final = 2000  # requests drawn a resample: time stays bounded, intervals only widen
_CONFIDENCE: Final = 0.95
_FIGURES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "ttft_p50_s": lambda values: quantile(values, 0.5),
    "ttft_p90_s": lambda values: quantile(values, 0.9),
    "ttft_mean_s": fmean,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """B - A of one figure in seconds, with its bounds (None: too few answers to give any)."""

    name: str
    a_s: float
    b_s: float
    low_s: float | None
    high_s: float | None

    @property
    def word(self) -> str:
        """Whether B is slower or faster, or the interval holds 0."""
        if self.low_s is None or self.high_s is None:
            return "cannot tell"
        return "slower" if self.low_s > 0 else "faster" if self.high_s < 0 else "no difference seen"


def differences(a_s: Sequence[float], b_s: Sequence[float]) -> list[Difference]:
    """B - A with 95% percentile-bootstrap intervals; `a_s`, `b_s`: seconds, each not empty.

    The runs are resampled apart, each request as if independent of the others: a queue that builds
    up makes neighbours alike, and true intervals are then wider.
    """
    drawn: dict[str, list[float]] = {name: [] for name in _FIGURES}
    draw = random.Random(_SEED)
    if min(len(a_s), len(b_s)) >= MIN_REQUESTS:
        for _ in range(_RESAMPLES):
            a = draw.choices(a_s, k=min(len(a_s), _MAX_DRAWN))
            b = draw.choices(b_s, k=min(len(b_s), _MAX_DRAWN))
            for name, figure in _FIGURES.items():
                drawn[name].append(figure(b) - figure(a))
    tail = (1 - _CONFIDENCE) / 2
    return [
        Difference(
            name,
            figure(a_s),
            figure(b_s),
            quantile(drawn[name], tail) if drawn[name] else None,
            quantile(drawn[name], 1 - tail) if drawn[name] else None,
        )
        for name, figure in _FIGURES.items()
    ]


def text(difference: Difference) -> str:
    """One line: both figures, their difference, its interval and what that says."""
    line = f"{difference.name}: A {difference.a_s:.4g}, B {difference.b_s:.4g}, "
    line += f"B - A {difference.b_s - difference.a_s:+.4g}"
    if difference.low_s is None or difference.high_s is None:
        return f"{line}; cannot tell: fewer than {MIN_REQUESTS} answers in one of them"
    return f"{line} [{difference.low_s:+.4g}, {difference.high_s:+.4g}]: {difference.word}"
