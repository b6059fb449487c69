"""The ranks that load together, and their two collectives.

Under vLLM that is its PCP group. (Upstream's broadcast takes the TP group, which has one member
under PCP: the other ranks get nothing.) Elsewhere it is the default process group.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

import torch
import torch.distributed as dist

from patched_engine.sharding.record import RECORD_BYTES
from patched_engine.sharding.settings import SWITCH, ShardingRefused

VLLM_VERSIONS: Final = ("0.31.0", "0.32.0", "0.33.0")
"""Releases whose PCP group is as this takes it; 0.32.0 is the one the tests run."""


class LoadAborted(RuntimeError):
    """A collective of a load failed: the ranks cannot go on together."""


@dataclass(frozen=True, slots=True)
class Group:
    """`control` carries host tensors, `data` those of the device; both hold the same ranks."""

    rank: int
    world_size: int
    control: Any
    data: Any

    def exchange(self, record: bytes) -> list[bytes]:
        """Every rank's record, in rank order. Raises what torch.distributed raises."""
        mine = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        everyone = torch.empty(RECORD_BYTES * self.world_size, dtype=torch.uint8)
        dist.all_gather_into_tensor(everyone, mine, group=self.control)
        data = everyone.numpy().tobytes()
        return [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]

    def gather(self, everyone: torch.Tensor, mine: torch.Tensor) -> None:
        """All slots of a round: uint8 [W x chunk bytes] from uint8 [chunk bytes]."""
        dist.all_gather_into_tensor(everyone, mine, group=self.data)

    def abort(self) -> None:
        """End both groups here: this rank enters no collective any more.

        Those of the others that wait in one fail when this process ends, at the group's timeout at
        the latest. (gloo tells them nothing before; NCCL, where it can.)
        """
        for group in (self.data, self.control):
            try:
                whole: Any = dist.group.WORLD
                (whole if group is None else group).abort()
            except Exception:  # it is broken already, which is why we are here
                continue


def check_vllm() -> None:
    """Raises ShardingRefused for a vLLM whose sources nobody has looked at."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = "without a version"
    if version.partition("+")[0] not in VLLM_VERSIONS:
        raise ShardingRefused(
            f"{SWITCH}: vLLM {version} is not known; {', '.join(VLLM_VERSIONS)} are"
        )


def find_group(world_size: int) -> Group | None:
    """The group of this worker, or None where there is none (yet).

    The caller compares its size with the engine's.
    """
    parallel_state = sys.modules.get("vllm.distributed.parallel_state")
    if parallel_state is not None:
        check_vllm()
        try:
            group = parallel_state.get_pcp_group()
        except (AssertionError, AttributeError):
            group = None
        if group is not None:
            return Group(group.rank_in_group, group.world_size, group.cpu_group, group.device_group)
    if not dist.is_available() or not dist.is_initialized():
        return None
    return Group(dist.get_rank(), dist.get_world_size(), None, None)
