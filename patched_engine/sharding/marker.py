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

from patched_engine import recorder
from patched_engine.resp.client import RespClient
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.results import Outcome
from patched_engine.resp.url import Endpoint
from patched_engine.sharding.ownership import SCHEMA
from patched_engine.sharding.settings import SWITCH, ShardingRefused

KEY: Final = "stallscope:shard"
SIZE_BYTES: Final = 256
_WRONG_TYPE: Final = "WRONGTYPE"
_DEADLINES: Final = Deadlines(1.0, 2.0, 2.0)
_AGAIN_SECONDS: Final = 2.0
_KEPT_SECONDS: Final = 30.0

logger = logging.getLogger("stallscope")


def mark(rank: int, world_size: int) -> bytes:
    """What the shard of this rank must hold: SIZE_BYTES bytes of JSON, padded with blanks."""
    said = {"rank": rank, "world_size": world_size, "schema": SCHEMA}
    return json.dumps(said, sort_keys=True).encode().ljust(SIZE_BYTES)


def check(endpoint: Endpoint, rank: int, world_size: int) -> str:
    """ "" where the shard is this rank's, else why that cannot be told. Leaves the mark where there
    is none.

    Raises ShardingRefused where the shard is another rank's, or of another number of ranks.
    """
    mine, found = mark(rank, world_size), bytearray(SIZE_BYTES)
    with RespClient(endpoint, connections=1, deadlines=_DEADLINES) as client:
        result = client.get([KEY], [found])[0]
        if result.is_miss:
            # Two pods that begin at once write the same bytes, or the next look tells.
            stored = client.set([KEY], [mine])[0]
            result = client.get([KEY], [found])[0] if stored.ok else stored
    if result.outcome is Outcome.WRONG_SIZE or result.code == _WRONG_TYPE:
        raise ShardingRefused(f"{SWITCH}: {endpoint} has a {KEY} that is not ours: another shard")
    if not result.ok:
        return result.detail or str(result.outcome)
    if bytes(found) != mine:
        raise ShardingRefused(
            f"{SWITCH}: {endpoint} is marked {_shown(bytes(found))}, but"
            f" this is rank {rank} of {world_size}: check {{rank}} in remote_url, or delete {KEY}"
            " there after emptying that shard"
        )
    return ""


def _shown(found: bytes) -> str:
    """In one line, whatever it is."""
    return ascii(found.decode(errors="backslashreplace").strip())[1:-1]


class Watch:
    """Keeps one rank's L2 out of use until its shard is known to be its own.

    It looks again later: a shard may come after its engine, lose its mark with its memory (or to
    LRU eviction, which this look keeps away), or be given to another pod meanwhile.
    """

    def __init__(self, endpoint: Endpoint, rank: int, world_size: int) -> None:
        self._endpoint = endpoint
        self._rank = rank
        self._world_size = world_size
        self._is_known = False
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._use: Callable[[bool], None] | None = None
        self._may_use = False
        self._was_refused = False

    def begin(self) -> None:
        """Look now, then again and again in a thread. Raises ShardingRefused now, never later."""
        why = self._look()
        if why:
            logger.warning(
                "stallscope: %s is not used before it is known whose shard it is: %s",
                self._endpoint,
                why,
            )
        threading.Thread(target=self._again, daemon=True, name="stallscope-shard-marker").start()

    def tell(self, use: Callable[[bool], None]) -> None:
        """`use(False)` now and whenever the shard may not be used, `use(True)` when it may."""
        with self._lock:
            self._use = use
            if not self._may_use:
                use(False)

    def end(self) -> None:
        """Look no more."""
        self._is_over.set()

    def _look(self) -> str:
        why = check(self._endpoint, self._rank, self._world_size)
        if not why:
            self._is_known = True
            self._was_refused = False
            self._decide(True)
        return why

    def _again(self) -> None:
        while not self._is_over.wait(_KEPT_SECONDS if self._is_known else _AGAIN_SECONDS):
            try:
                self._look()
            except ShardingRefused as error:
                self._is_known = False
                if not self._was_refused:
                    logger.error("stallscope: it is not used any more: %s", error)
                self._was_refused = True
                self._decide(False)
            except Exception as error:
                recorder.fault("shard marker", error)

    def _decide(self, may_use: bool) -> None:
        with self._lock:
            is_news, self._may_use = may_use is not self._may_use, may_use
            if is_news and self._use is not None:
                self._use(may_use)
