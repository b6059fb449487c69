"""What a group's joined collectives are: one row each, one column a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exporters.readers.profiles import table as t


@dataclass(frozen=True, slots=True)
class Joined:
    """The collectives of one group that all its ranks have. Shapes: `op` (n,), `start_ns` and
    `end_ns` (n, W), in the order of `ranks`; times of different ranks are of one clock only where
    the recording says so. `unjoined` counts those that some ranks lack; `problem` says why none
    could be joined, "" where some were."""

    name: str
    ranks: tuple[int, ...]
    size: int
    op: npt.NDArray[np.int8]
    start_ns: t.Int
    end_ns: t.Int
    unjoined: int
    problem: str = ""

    def __len__(self) -> int:
        return len(self.op)
