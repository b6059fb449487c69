"""A mark in each rank's shard that says whose it is: a pod that would mix shards does not start.

Rank r of every pod uses shard r of W. A pod with another W, or a URL in the wrong order, would
store chunks where no other pod looks for them, and every lookup would stop short without a word.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Final

from patched_engine.resp.client import RespClient
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.results import Outcome
from patched_engine.resp.url import Endpoint
from patched_engine.sharding.ownership import SCHEMA
from patched_engine.sharding.settings import SWITCH, ShardingRefused

KEY: Final = "stallscope:shard"
SIZE_BYTES: Final = 256
_DEADLINES: Final = Deadlines(1.0, 2.0, 2.0)
_AGAIN_SECONDS: Final = 2.0

logger = logging.getLogger("stallscope")


def mark(rank: int, world_size: int) -> bytes:
    """What the shard of this rank must hold: SIZE_BYTES bytes of JSON, padded with blanks."""
    said = {"rank": rank, "world_size": world_size, "schema": SCHEMA}
    return json.dumps(said, sort_keys=True).encode().ljust(SIZE_BYTES)


def check(endpoint: Endpoint, rank: int, world_size: int) -> bool:
    """Whether the shard could be asked. Leaves the mark where there is none.

    Raises ShardingRefused where the shard is another rank's, or of another number of ranks.
    """
    mine, found = mark(rank, world_size), bytearray(SIZE_BYTES)
    with RespClient(endpoint, connections=1, deadlines=_DEADLINES) as client:
        result = client.get([KEY], [found])[0]
        if result.is_miss:
            # Two pods that begin at once write the same bytes, or the next look tells.
            stored = client.set([KEY], [mine])[0]
            result = client.get([KEY], [found])[0] if stored.ok else stored
    if result.outcome is Outcome.WRONG_SIZE:
        raise ShardingRefused(f"{SWITCH}: {endpoint} has a {KEY} that is not ours: another shard")
    if not result.ok:
        return False
    if bytes(found) != mine:
        raise ShardingRefused(
            f"{SWITCH}: {endpoint} is marked {bytes(found).decode(errors='replace').strip()}, but"
            f" this is rank {rank} of {world_size}: check {{rank}} in remote_url, or delete {KEY}"
            " there after emptying that shard"
        )
    return True


def check_when_it_comes(
    endpoint: Endpoint, rank: int, world_size: int, on_refused: OnRefused
) -> threading.Thread | None:
    """`check` now; where the shard is not there, again in the background until it is.

    Raises ShardingRefused now; later, `on_refused(error)` is called instead, once.
    """
    if check(endpoint, rank, world_size):
        return None
    logger.warning("stallscope: %s is not there: whose shard it is will be checked later", endpoint)

    def later() -> None:
        while not on_refused.is_over.wait(_AGAIN_SECONDS):
            try:
                if check(endpoint, rank, world_size):
                    return
            except ShardingRefused as error:
                logger.error("stallscope: %s", error)
                on_refused(error)
                return

    thread = threading.Thread(target=later, daemon=True, name="stallscope-shard-marker")
    thread.start()
    return thread


class OnRefused:
    """What to do when a shard turns out to be another's; `is_over` ends the watch."""

    def __init__(self, action: Callable[[ShardingRefused], None]) -> None:
        self._action = action
        self.is_over = threading.Event()

    def __call__(self, error: ShardingRefused) -> None:
        self._action(error)
