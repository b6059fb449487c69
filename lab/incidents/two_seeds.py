"""two-seeds: one rank's process draws a seed of its own for the names of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.incidents.base import Incident
from lab.settings import Settings

_OTHER_SEED: Final = 1


class TwoSeeds(Incident):
    """Without PYTHONHASHSEED each process of vLLM begins the chain of its hashes with a number it
    draws (`kv_cache_utils.init_none_hash`), which LMCache takes. Here it takes another on one rank:
    that one stores under names of its own and finds nothing, and no error says so."""

    name = "two-seeds"
    summary = "one rank, drawn from the seed, names chunks by a hash seed of its own: no hits"
    finding = "key-namespace-split"
    cause = "hash-seed"
    has_shard = False

    def rank(self, settings: Settings) -> int | None:
        """Of two neither is the odd one."""
        return self.acting_rank(settings) if settings.ranks > 2 else None

    def lmcache_settings(self, settings: Settings) -> dict[str, Any] | None:
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_rank() == self.acting_rank(settings):
            from lmcache.v1.token_database import ChunkedTokenDatabase

            ChunkedTokenDatabase._get_init_hash = lambda self: _OTHER_SEED
        return None

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        return True
