"""The "GPU" side of a CPU engine: LMCache's connector interface over our paged KV tensor.

LMCache ships no connector for CPUs. This one copies between a rank's paged KV (bfloat16
[layers, slots, head_size]) and LMCache's chunk buffers ([1, layers, tokens, head_size]).
A copy takes at least as long as a device's would at the lab's stated rate.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface

from lab.settings import LAYERS


class PagedCPUConnector(GPUConnectorInterface):
    """Copies whole chunks; `kvcaches` and `slot_mapping` come with each call, as in the engine."""

    def __init__(self, head_size: int, chunk_copy_seconds: float) -> None:
        self.head_size = head_size
        self.chunk_copy_seconds = chunk_copy_seconds

    def batched_from_gpu(
        self, memory_objs: list[Any], starts: list[int], ends: list[int], **kwargs: Any
    ) -> None:
        begun = time.monotonic()
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory_obj, start, end, **kwargs)
        self._take(begun, len(memory_objs))

    def batched_to_gpu(
        self,
        memory_objs: list[Any] | None = None,
        starts: list[int] | None = None,
        ends: list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        begun = time.monotonic()
        for memory_obj, start, end in zip(memory_objs or (), starts or (), ends or (), strict=True):
            self.to_gpu(memory_obj, start, end, **kwargs)
        self._take(begun, len(memory_objs or ()))

    def _take(self, begun_seconds: float, chunks: int) -> None:
        """Wait for the end of a copy that a device would still be busy with."""
        left = begun_seconds + chunks * self.chunk_copy_seconds - time.monotonic()
        if left > 0:
            time.sleep(left)

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        kv, slots = _slots(start, end, kwargs)
        memory_obj.tensor[0].copy_(kv[:, slots])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        kv, slots = _slots(start, end, kwargs)
        kv[:, slots] = memory_obj.tensor[0]

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([1, LAYERS, num_tokens, self.head_size])


def _slots(start: int, end: int, kwargs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    """The paged KV and an index for tokens [start, end): a slice where the slots are in a row."""
    kv: torch.Tensor = kwargs["kvcaches"]
    slots: torch.Tensor = kwargs["slot_mapping"][start:end]
    first, last = int(slots[0]), int(slots[-1])
    if last - first == end - start - 1 and bool((slots[1:] - slots[:-1] == 1).all()):
        return kv, slice(first, last + 1)
    return kv, slots
