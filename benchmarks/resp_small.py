"""Batches of 256 keys of 1 KB: redis-py in a loop, redis-py pipelined, and our client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import redis

from patched_engine.resp import RespClient

SMALL_KEYS = 256
SMALL_BYTES = 1024
CONNECTIONS = 8


def small_batches(port: int, rounds: int) -> dict[str, list[float]]:
    """Each round's seconds of a batch by "CLIENT, OPERATION".

    The contenders take turns, ours twice ("ours again": the A/A pair). redis-py
    parses with hiredis where that is installed.
    """
    names = [f"small {index}" for index in range(SMALL_KEYS)]
    values = [os.urandom(SMALL_BYTES) for _ in names]
    buffers = [bytearray(SMALL_BYTES) for _ in names]
    rival = redis.Redis(port=port)
    with RespClient(f"resp://127.0.0.1:{port}", connections=CONNECTIONS) as ours:

        def loop_get() -> None:
            for name in names:
                rival.get(name)

        def loop_set() -> None:
            for name, value in zip(names, values, strict=True):
                rival.set(name, value)

        def pipeline_get() -> None:
            with rival.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.get(name)
                pipeline.execute()

        def pipeline_set() -> None:
            with rival.pipeline(transaction=False) as pipeline:
                for name, value in zip(names, values, strict=True):
                    pipeline.set(name, value)
                pipeline.execute()

        def ours_get() -> None:
            assert all(result.ok for result in ours.get(names, buffers))

        def ours_set() -> None:
            assert all(result.ok for result in ours.set(names, values))

        calls: dict[str, Callable[[], None]] = {
            "redis-py loop, SET": loop_set,
            "redis-py pipeline, SET": pipeline_set,
            "ours, SET": ours_set,
            "redis-py loop, GET": loop_get,
            "redis-py pipeline, GET": pipeline_get,
            "ours, GET": ours_get,
            "ours again, SET": ours_set,
            "ours again, GET": ours_get,
        }
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds + 1):  # the first round connects and is not counted
            for name, call in calls.items():
                begin = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - begin)
        assert buffers == values
    rival.close()
    return {name: times[1:] for name, times in samples.items()}
