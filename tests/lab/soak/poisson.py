"""The exact interval of a rate from a count: how many calls there are to one loss."""

from __future__ import annotations

import math


def _tail(count: int, mean: float) -> float:
    """P(X <= count) for X ~ Poisson(mean)."""
    log_terms = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1)]
    return min(1.0, math.fsum(math.exp(term) for term in log_terms))


def _solve(count: int, wanted: float) -> float:
    """The mean at which P(X <= count) is `wanted`; it falls as the mean grows."""
    low, high = 1e-9, 10.0 * (count + 5)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(count, middle) > wanted else (low, middle)
    return (low + high) / 2


def calls_per_loss(calls: int, losses: int) -> tuple[float, float, float]:
    """(estimate, low, high) of calls a loss, two-sided 95%; infinite above without any loss."""
    most = _solve(losses, 0.025)
    if losses == 0:
        return math.inf, calls / most, math.inf
    fewest = _solve(losses - 1, 0.975)
    return calls / losses, calls / most, calls / fewest
