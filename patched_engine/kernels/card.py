"""What the launches ask of the card: its multiprocessors, and whether launches may overlap."""

from __future__ import annotations

from functools import cache

import torch


def index_of(tensor: torch.Tensor) -> int:
    """The CUDA device index of ``tensor``; the current device where its own names none."""
    index = tensor.device.index
    return index if index is not None else torch.cuda.current_device()


@cache
def sm_count(device_index: int) -> int:
    """Multiprocessors of the device."""
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


@cache
def can_overlap(device_index: int) -> bool:
    """Whether the device has programmatic dependent launch (sm_90 and later)."""
    return torch.cuda.get_device_capability(device_index)[0] >= 9
