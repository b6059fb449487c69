"""Tells the sharded store how long vLLM's longest prompt is.

So it is checked at start, and not found out under load, whether a rank's share of L1 can hold its
share of that prompt. For an engine that does not shard nothing changes.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from patched_engine.patches.patch import Patch, require
from patched_engine.sharding import settings


def check(module: Any) -> None:
    """The factory must have vLLM's and LMCache's settings when it makes the metadata."""
    require(
        module.VllmServiceFactory,
        "get_or_create_metadata",
        {"lmcache_config", "vllm_config", "model_config"},
    )


def apply(module: Any) -> None:
    """Name the longest prompt in LMCache's settings, unless they name one."""
    stock = module.VllmServiceFactory.get_or_create_metadata

    @functools.wraps(stock)
    def naming(self: Any) -> Any:
        config = self.lmcache_config
        if settings.is_wanted(config):
            longest = int(self.vllm_config.model_config.max_model_len)
            config.extra_config.setdefault(settings.MAX_PROMPT, longest)
        return stock(self)

    module.VllmServiceFactory.get_or_create_metadata = naming


PATCH: Final = Patch(
    name="longest-prompt",
    upstream="LMCache, no number: part of the sharded store",
    summary="a sharded engine under vLLM refuses to start where L1 cannot hold a longest prompt",
    module="lmcache.integration.vllm.vllm_service_factory",
    touches=("VllmServiceFactory.get_or_create_metadata",),
    check=check,
    apply=apply,
)
