"""Faults of one rank's own work in a load: where each is put, and that it goes away again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

_undo: list[Callable[[], None]] = []


class Injected(RuntimeError):
    """The fault of a test."""


def put(rank: Any, where: str, value: float, once: bool) -> None:
    """`value` is seconds of a delay, or the number of the call that fails (from 0)."""
    from patched_engine.sharding import engine as sharded
    from patched_engine.sharding import guarded, reading, rounds

    owners = {
        "prepare": (rounds.Staging, "reserve"),
        "read": (reading.Held, "read"),
        "stage": (rounds.HostRounds, "stage"),
        "place": (rounds.HostRounds, "place"),
        "exchange": (type(rank.engine.stallscope_shard.group), "exchange"),
        "prefetch": (type(rank.l2), "batched_get_non_blocking"),
        "contains": (type(rank.l2), "batched_async_contains"),
        "from_gpu": (type(rank.engine.gpu_connector), "batched_from_gpu"),
        "put": (type(rank.l2), "batched_submit_put_task"),
        "slices": (guarded, "_SLICE_KEYS"),
        "fingerprint": (sharded, "fingerprint"),
        "interrupt": (reading.Held, "read"),
        "late": (reading.Held, "read"),
        "die": (rounds.HostRounds, "place"),
        "slow_get": (type(rank.l2), "batched_get_non_blocking"),
    }
    owner, name = owners[where]
    stock = getattr(owner, name)
    _undo.append(lambda: setattr(owner, name, stock))
    if where == "slices":
        setattr(owner, name, int(value))
        return
    calls = [0]

    def faulty(*args: Any, **kwargs: Any) -> Any:
        number, calls[0] = calls[0], calls[0] + 1
        if where == "late":
            time.sleep(value if number == 0 else 0)
        elif where == "fingerprint":
            return 12345
        elif where == "interrupt":
            raise KeyboardInterrupt
        elif where == "die" and number == value:
            os.kill(os.getpid(), signal.SIGKILL)
        elif where not in ("die", "slow_get") and (number == value or not once):
            raise Injected(where)
        return stock(*args, **kwargs)

    async def slow(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        await asyncio.sleep(value)
        return await stock(*args, **kwargs)

    setattr(owner, name, slow if where == "slow_get" else faulty)


def take_out() -> None:
    """Everything as it was."""
    while _undo:
        _undo.pop()()
