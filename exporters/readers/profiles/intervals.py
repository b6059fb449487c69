"""Sets of intervals as sorted arrays: unions, what lies between, and overlaps, without loops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


def union(start: Int, end: Int) -> tuple[Int, Int]:
    """The merged intervals, sorted and apart. Shapes: (n,) each in, (m,) each out, m <= n."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.empty(len(start), dtype=bool)
    first[0] = True
    np.greater(start[1:], end[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    return start[begins], end[np.append(begins[1:], len(start)) - 1]


def gaps(start: Int, end: Int, begin: int, finish: int) -> tuple[Int, Int]:
    """What a union leaves free within [begin, finish)."""
    left = np.append(begin, end).clip(begin, finish)
    right = np.append(start, finish).clip(begin, finish)
    free = right > left
    return left[free], right[free]


def covered(start: Int, end: Int, at: Int) -> Int:
    """Length of a union that lies before each of `at`, in the same unit; shape of `at`."""
    if not len(start):
        return np.zeros_like(at)
    total = np.concatenate(([0], np.cumsum(end - start)))
    index = np.searchsorted(start, at, side="right")
    inside = np.minimum(at, end[index - 1]) - start[index - 1]
    return np.where(index > 0, total[index - 1] + inside, 0)


def overlap(start: Int, end: Int, with_start: Int, with_end: Int) -> Int:
    """How much of each interval lies in the union (`start`, `end`). Shape (n,) of `with_start`."""
    return covered(start, end, with_end) - covered(start, end, with_start)
