"""The typed picture of a profile: what the readers of profiles return and its detectors take.

Plain immutable data in seconds and bytes. Waits follow the design's one definition; None stands for
what the files cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DoingKind = Literal["copy", "kernel", "collective", "range", "call", "idle"]


@dataclass(frozen=True, slots=True)
class Doing:
    """Something that the late rank did while the others waited for it: for how long within that
    time, as a share of it, and how much of the other ranks' record it fills (what is there anyway
    explains nothing). `bytes` of copies, 0 for the rest."""

    kind: DoingKind
    name: str
    seconds: float
    share: float
    base_share: float
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LateRank:
    """The rank that the others waited for most.

    `charged_seconds` is their wait in rank-seconds, `charged_share` of all wait; `last_share` how
    often it came last among the `collectives` that hold nine tenths of the wait, `chance` the
    probability of that if every rank were alike; `lost_share` of the wall for each other rank.
    `agrees`: whether durations and starts name the same rank, None where only one can be had.
    `is_clear`: whether it may be called late at all.
    """

    rank: int
    charged_seconds: float
    charged_share: float
    last_share: float
    collectives: int
    chance: float
    lost_share: float
    confidence: float
    agrees: bool | None
    is_clear: bool
    meanwhile: tuple[Doing, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuGap:
    """A time without work on a rank's GPU, from the record's begin, and the innermost CPU range
    over it ("" where none was recorded)."""

    start_seconds: float
    seconds: float
    under: str


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank. `busy_seconds`: its GPU had any work; `work_seconds`: any but collectives, in which
    a waiting rank looks busy. Both None where no GPU was recorded; the waits None where nothing of
    this rank could be joined."""

    rank: int
    wall_seconds: float
    busy_seconds: float | None
    work_seconds: float | None
    collectives: int
    collective_seconds: float
    d2h_bytes: int
    h2d_bytes: int
    d2h_seconds: float
    h2d_seconds: float
    wait_seconds: float | None = None
    wait_by_duration_seconds: float | None = None
    wait_by_skew_seconds: float | None = None
    charged_seconds: float | None = None
    last_count: int | None = None
    gaps: tuple[GpuGap, ...] = ()

    @property
    def idle_share(self) -> float | None:
        """Share of the wall in which its GPU had nothing to do."""
        if self.busy_seconds is None or self.wall_seconds <= 0:
            return None
        return 1 - self.busy_seconds / self.wall_seconds


@dataclass(frozen=True, slots=True)
class KernelUse:
    """All launches of one kernel (or copies in one direction) on all ranks. `gpu_share` is of the
    summed time of everything on the GPUs; `blocks` and `threads` those of the median launch, 0
    where unknown; `bytes` None where the profile does not know what it moved."""

    name: str
    kind: DoingKind
    calls: int
    seconds: float
    gpu_share: float
    blocks: int = 0
    threads: int = 0
    bytes: int | None = None
    median_seconds: float = 0.0

    @property
    def bytes_per_second(self) -> float | None:
        """Achieved bandwidth, where the bytes are known."""
        return self.bytes / self.seconds if self.bytes and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """One process group: how its collectives were joined, and by what its waits are told.
    `problem` says why they could not be ("" where they were), `clock` why start skew is unseen."""

    name: str
    ranks: tuple[int, ...]
    size: int
    ops: Mapping[str, int]
    joined: int
    unjoined: int
    without_basis: int = 0
    problem: str = ""
    clock: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a set of profile files says, all ranks together. `multiprocessors` 0 and
    `memory_bytes_per_second` 0.0 where the files do not state the device's."""

    wall_seconds: float
    ranks: tuple[RankProfile, ...]
    groups: tuple[GroupWaits, ...]
    kernels: tuple[KernelUse, ...]
    late: LateRank | None = None
    multiprocessors: int = 0
    memory_bytes_per_second: float = 0.0
    device: str = ""
    op_waits: Mapping[str, float] = field(default_factory=dict)
