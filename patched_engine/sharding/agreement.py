"""All workers of an engine must mean the same store, or none of them starts.

Each says what it was told in torch.distributed's store, whatever that is, and waits for the others
under a deadline: no collective, so a worker that never comes cannot hold anyone.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any, Final

from patched_engine.sharding.ownership import SCHEMA
from patched_engine.sharding.settings import SWITCH, ShardingRefused

DEADLINE_SECONDS: Final = 60.0
_PREFIX: Final = "stallscope/sharding"


def statement(is_wanted: bool, config: Any, metadata: Any) -> dict[str, object]:
    """What one worker says of itself; all must say the same."""
    return {
        SWITCH: is_wanted,
        "world_size": int(metadata.world_size),
        "chunk_size": int(config.chunk_size),
        "remote_url": str(config.remote_url or ""),
        "max_local_cpu_size": float(config.max_local_cpu_size),
        "enable_async_loading": bool(config.enable_async_loading),
        "schema": SCHEMA,
    }


def agree(
    store: Any,
    rank: int,
    world_size: int,
    said: dict[str, object],
    label: str,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> None:
    """Raises ShardingRefused where a rank says something else, or nothing in time.

    `store` is torch.distributed's, `label` names the engine and the time of asking.
    """
    ends = time.monotonic() + deadline_seconds
    store.set(f"{_PREFIX}/{label}/{rank}", json.dumps(said))
    for other in range(world_size):
        left = max(0.01, ends - time.monotonic())
        try:
            store.wait([f"{_PREFIX}/{label}/{other}"], timedelta(seconds=left))
        except Exception as error:
            if not said[SWITCH]:
                return  # this one changes nothing, whoever is missing
            raise ShardingRefused(
                f"{SWITCH}: rank {other} did not say within {deadline_seconds:g} s whether it"
                f" shards ({type(error).__name__}): every worker must run the patched engine"
            ) from None
        heard = json.loads(store.get(f"{_PREFIX}/{label}/{other}"))
        # Ranks that do not shard may differ in all else: stock ranks may have URLs of their own.
        for name in said if said[SWITCH] else (SWITCH,):
            value = said[name]
            if heard.get(name) != value:
                raise ShardingRefused(
                    f"{SWITCH}: rank {rank} has {name} {value!r} and rank {other} has"
                    f" {heard.get(name)!r}: give every worker the same settings"
                )
