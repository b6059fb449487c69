"""1,000 missing keys in a row on one connection, no deadline to save it, a good GET after each.

Run by the test on our client and, in a process of its own, on LMCache's native one, which hangs at
the first (LMCache #5551): `python -m tests.patched_engine.resp.missing_keys PORT`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

COUNT = 1_000
LIMIT_SECONDS = 0.005
HANG_SECONDS = 3.0
TRIES = 3  # a busy machine takes turns away from both sides: the best of a few is the client
GOOD_KEY, GOOD_VALUE = "present", bytes(range(256)) * 4

# One GET into the buffer; True when it holds the value, False on a miss.
Get = Callable[[str, bytearray], bool]


def missing_then_good(get: Get) -> list[float]:
    """Seconds of each missing GET, at best. Raises AssertionError."""
    seconds: list[float] = []
    for index in range(COUNT):
        buffer = bytearray(len(GOOD_VALUE))
        best = float("inf")
        for _ in range(TRIES):
            begin = time.perf_counter()
            assert not get(f"missing {index}", buffer), index
            best = min(best, time.perf_counter() - begin)
            if best < LIMIT_SECONDS:
                break
        seconds.append(best)
        assert buffer == bytes(len(GOOD_VALUE))
        assert get(GOOD_KEY, buffer), index
        assert buffer == GOOD_VALUE
    return seconds


def _native(port: int) -> None:
    import asyncio

    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def make() -> RESPClient:
        return RESPClient("127.0.0.1", port, 1)

    def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
        # Not its blocking methods: those may lose a completion as well, which is another bug.
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    client = on_loop(make())
    moved = time.monotonic()

    def watch() -> None:
        while time.monotonic() - moved < HANG_SECONDS:
            time.sleep(0.1)
        print("a GET hangs", flush=True)
        os._exit(3)

    def get(key: str, buffer: bytearray) -> bool:
        nonlocal moved
        on_loop(client.get(key, memoryview(buffer)))
        moved = time.monotonic()
        return buffer != bytes(len(buffer))

    on_loop(client.set(GOOD_KEY, memoryview(bytearray(GOOD_VALUE))))
    assert get(GOOD_KEY, bytearray(len(GOOD_VALUE)))  # it works, until a key is missing
    print("a present key is served", flush=True)
    threading.Thread(target=watch, daemon=True).start()
    missing_then_good(get)
    print("passed", flush=True)
    os._exit(0)


if __name__ == "__main__":
    _native(int(sys.argv[1]))
