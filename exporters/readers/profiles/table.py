"""The one table that every format becomes: plain columns, and no analysis asks for the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from exporters.snapshot import Unseen

Int = npt.NDArray[np.int64]

# Values of the column `kind`. Those up to COPY_OTHER are work of a GPU.
KERNEL: Final = 0
COLLECTIVE: Final = 1
FILL: Final = 2
COPY_D2H: Final = 3
COPY_H2D: Final = 4
COPY_OTHER: Final = 5
RANGE: Final = 6  # a range somebody named: NVTX, record_function
CALL: Final = 7  # a call the profiler saw on the CPU by itself
HOST_COLLECTIVE: Final = 8  # a blocking collective of the CPU (gloo)

GPU_KINDS: Final = (KERNEL, COLLECTIVE, FILL, COPY_D2H, COPY_H2D, COPY_OTHER)
COLLECTIVE_KINDS: Final = (COLLECTIVE, HOST_COLLECTIVE)
CPU_KINDS: Final = (RANGE, CALL)
NOT_KNOWN: Final = -1
MAX_RANK: Final = 1 << 20
MAX_NUMBER: Final = 1 << 62  # of a sequence, of bytes: what is larger is no count of anything

COLUMNS: Final[Mapping[str, type[np.generic]]] = {
    "rank": np.int32,
    "stream": np.int32,
    "kind": np.int8,
    "op": np.int8,
    "name": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "group": np.int32,
    "sequence": np.int64,
    "bytes": np.int64,
    "blocks": np.int64,
    "threads": np.int32,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as columns of one length n.

    `rank`, `stream` (a GPU stream, or a CPU thread), `kind`, `op` (index into names.OPS), `name`
    (index into the part's names), `start_ns` and `end_ns` (int64, nanoseconds of one clock for each
    part), `group` (index into the part's groups), `sequence` (of the collective within its group),
    `bytes` (moved, as the profiler states them), `blocks` and `threads` (of the launch: CTAs, and
    threads in each). What is not known is -1.
    """

    rank: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    op: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    start_ns: Int
    end_ns: Int
    group: npt.NDArray[np.int32]
    sequence: Int
    bytes: Int
    blocks: Int
    threads: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, chosen: npt.NDArray[np.bool_] | Int) -> Table:
        """The rows of a mask or of an index array, in that order."""
        return Table(**{name: getattr(self, name)[chosen] for name in COLUMNS})

    @property
    def duration_ns(self) -> Int:
        return self.end_ns - self.start_ns


def table_of(columns: Mapping[str, Sequence[int] | npt.NDArray[np.generic]]) -> Table:
    """A Table of the given columns, -1 in those that are left out. Shapes: (n,) each."""
    length = len(columns["start_ns"])
    return Table(
        **{
            name: (
                np.asarray(columns[name], dtype=dtype)
                if name in columns
                else np.full(length, NOT_KNOWN, dtype=dtype)
            )
            for name, dtype in COLUMNS.items()
        }
    )


def joined(tables: Sequence[Table]) -> Table:
    """All rows of all tables, in order."""
    if not tables:
        return table_of({"start_ns": []})
    if len(tables) == 1:
        return tables[0]
    return Table(**{n: np.concatenate([getattr(t, n) for t in tables]) for n in COLUMNS})


def distinct(values: Int) -> tuple[Int, Int]:
    """The distinct values, sorted, and for each value its place among them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > 4 * len(values) + 65536:  # too far apart to count
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse
    counts = np.bincount(values - low)
    place = np.cumsum(counts > 0) - 1
    return np.flatnonzero(counts) + low, place[values - low]


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as the profile names it. `size` 0 and `ranks` () where it does not say."""

    name: str
    size: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """What the profile says of the GPU; 0 where it does not."""

    name: str = ""
    multiprocessors: int = 0
    memory_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """One file, read. `rank` is the one it states for all its rows (None: rows have their own, or
    it does not say); `clock` names the clock of its times, equal where two files share one;
    `left_out` counts events that could not be used, by reason."""

    path: str
    format: str
    schema: str
    table: Table
    names: tuple[str, ...]
    groups: tuple[GroupName, ...] = ()
    rank: int | None = None
    world_size: int = 0
    clock: str = ""
    device: Device = field(default_factory=Device)
    events: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    duration_only: bool = False  # times are not those of the work itself: only d can be trusted
