"""Time launches inside a CUDA graph over rotated buffers, so that neither host nor L2 helps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from patched_engine.kernels import card

ROTATE_BYTES = 590_000_000
"""Bytes that a round of buffers covers at least: ten times the card's L2."""


def sets_for(bytes_per_launch: int, most: int = 24) -> int:
    """How many buffer sets a round needs so that no set is still in L2 when it comes again."""
    return max(2, min(most, -(-ROTATE_BYTES // max(bytes_per_launch, 1))))


def graph_seconds(
    launch: Callable[[int], None], sets: int, launches: int = 24, replays: int = 12
) -> float:
    """Median seconds of one launch: ``launches`` of them, set after set, in one replayed graph."""
    launches = -(-launches // sets) * sets
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for index in range(min(sets, 3)):
            launch(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(launches):
            launch(index % sets)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    taken: list[float] = []
    for _ in range(replays):
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        taken.append(start.elapsed_time(stop) / 1e3 / launches)
    return statistics.median(taken)


@contextmanager
def launches_apart() -> Iterator[None]:
    """Within it our kernels launch like anyone's: only once the kernel before has ended."""
    with mock.patch.object(card, "can_overlap", lambda device_index: False):
        yield


def stream_seconds(total_bytes: int, launches: int = 24, replays: int = 12) -> float:
    """The ceiling: ``bitwise_xor`` on int64, two reads and one write of ``total_bytes`` in all."""
    elements = max(total_bytes // 24, 1)
    sets = sets_for(total_bytes)
    parts = [
        [
            torch.randint(-(2**62), 2**62, (elements,), dtype=torch.int64, device="cuda")
            for _ in range(2)
        ]
        + [torch.empty(elements, dtype=torch.int64, device="cuda")]
        for _ in range(sets)
    ]

    def launch(index: int) -> None:
        left, right, out = parts[index]
        torch.bitwise_xor(left, right, out=out)

    return graph_seconds(launch, sets, launches, replays)
