"""Calls LMCache's real client until it loses a completion by itself, again and again.

    python -m tests.lab.soak.loss_rate PORT SECONDS SCHEDULING THREADS

Run as a program. SCHEDULING is "plain", or "quiet": with what the lab does to make the fault rare.
Prints one JSON object: for each client how many calls it made, and whether it lost the last one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

from lab.losses import PendingTable
from lab.settings import QUIET_SWITCH_SECONDS

_KEYS = [f"key-{number}" for number in range(64)]


def client_of(port: int, threads: int, loop: asyncio.AbstractEventLoop) -> Any:
    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    async def make() -> Any:
        return RESPClient("127.0.0.1", port, threads, loop)

    return asyncio.run_coroutine_threadsafe(make(), loop).result()


def until_lost(client: Any, deadline: float) -> tuple[int, bool]:
    """Calls made by this client, and whether the last one was lost."""
    lost = threading.Event()
    table = client._pending = PendingTable(client._pending, lost.set)

    def call() -> None:
        while time.monotonic() < deadline:
            client.batch_exists_sync(_KEYS)

    caller = threading.Thread(target=call, daemon=True)  # it never comes back from a loss
    caller.start()
    while caller.is_alive() and not lost.wait(0.01):
        continue
    return table.exists_calls, lost.is_set()


def main() -> None:
    port, seconds, scheduling = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    threads = int(sys.argv[4])  # of the native client; LMCache's default is 8, the lab's 1
    if scheduling == "quiet":
        sys.setswitchinterval(QUIET_SWITCH_SECONDS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    deadline = time.monotonic() + seconds
    runs = []
    while time.monotonic() < deadline:
        runs.append(until_lost(client_of(port, threads, loop), deadline))
    print(json.dumps(runs))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
