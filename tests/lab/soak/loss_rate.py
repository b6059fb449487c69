"""Calls LMCache's real client until it loses a completion by itself, again and again.

    python -m tests.lab.soak.loss_rate PORT SECONDS SCHEDULING OTHERS

Run as a program. SCHEDULING is "plain", or "quiet": with what the lab does to make the fault rare.
OTHERS is "alone", or "busy": another thread runs Python meanwhile, as an engine's main thread does.
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

_CONNECTIONS = 8  # LMCache's default
_KEYS = [f"key-{number}" for number in range(64)]


def work() -> None:
    """Half of the time in the interpreter, a millisecond at a time."""
    while True:
        end = time.monotonic() + 1e-3
        while time.monotonic() < end:
            continue
        time.sleep(1e-3)


def client_of(port: int, loop: asyncio.AbstractEventLoop) -> Any:
    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    async def make() -> Any:
        return RESPClient("127.0.0.1", port, _CONNECTIONS, loop)

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
    if scheduling == "quiet":
        sys.setswitchinterval(QUIET_SWITCH_SECONDS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    if sys.argv[4] == "busy":
        threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + seconds
    runs = []
    while time.monotonic() < deadline:
        runs.append(until_lost(client_of(port, loop), deadline))
    print(json.dumps(runs))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
