"""1,000 missing keys in a row on one connection, no deadline to save it, a good GET after each.

Run by the test on our client and, in a process of its own, on LMCache's native one, which hangs at
the first (LMCache #5551): `python -m tests.patched_engine.resp.missing_keys PORT`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

COUNT = 1_000
LIMIT_SECONDS = 0.005
HANG_SECONDS = 5.0
GOOD_KEY, GOOD_VALUE = "present", bytes(range(256)) * 4

# One GET into the buffer; True when it holds the value, False on a miss.
Get = Callable[[str, bytearray], bool]


def missing_then_good(get: Get) -> list[float]:
    """Seconds of each missing GET. Raises AssertionError, or TimeoutError for one that hangs."""
    seconds: list[float] = []
    for index in range(COUNT):
        buffer = bytearray(len(GOOD_VALUE))
        begin = time.perf_counter()
        assert not bounded(lambda b=buffer, i=index: get(f"missing {i}", b)), index
        seconds.append(time.perf_counter() - begin)
        assert buffer == bytes(len(GOOD_VALUE))
        assert bounded(lambda b=buffer: get(GOOD_KEY, b)), index
        assert buffer == GOOD_VALUE
    return seconds


def bounded(call: Callable[[], bool]) -> bool:
    """The call's result; TimeoutError after HANG_SECONDS."""
    watch = threading.Timer(HANG_SECONDS, _hung)
    watch.daemon = True
    watch.start()
    try:
        return call()
    finally:
        watch.cancel()


def _hung() -> None:
    print("TimeoutError: a GET hangs", flush=True)
    os._exit(3)


def _native(port: int) -> None:
    import asyncio

    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def make() -> RESPClient:
        return RESPClient("127.0.0.1", port, 1)

    client = asyncio.run_coroutine_threadsafe(make(), loop).result()

    def get(key: str, buffer: bytearray) -> bool:
        client.get_sync(key, memoryview(buffer))
        return buffer != bytes(len(buffer))

    missing_then_good(get)
    print("passed", flush=True)
    os._exit(0)


if __name__ == "__main__":
    _native(int(sys.argv[1]))
