"""Settings that cannot work end the start, instead of an engine that runs on without its cache.

LMCache's manager catches every error of its start and goes on in "degraded mode": each request
then waits out the lookup timeout, and only a log line tells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from patched_engine.patches import rank_url
from patched_engine.patches.patch import Patch, require
from patched_engine.patches.placeholders import PlaceholderError
from patched_engine.resp.url import EndpointError
from patched_engine.sharding.settings import ShardingRefused

REFUSALS: tuple[type[Exception], ...] = (PlaceholderError, EndpointError, ShardingRefused)
"""What a setting is refused with. (Not an outage: a server that is not there may come.)"""

_refused: list[Exception] = []


def remember(error: Exception) -> None:
    """Note a refusal that upstream is about to swallow."""
    _refused.append(error)


def check(module: Any) -> None:
    """The manager must swallow what its start raises."""
    require(module.LMCacheManager, "__init__", {"_init_failed_reason"})
    require(module.LMCacheManager, "post_init", {"_handle_post_init_failure"})


def apply(module: Any) -> None:
    """Raise a refusal again once the manager has swallowed it."""
    for name in ("__init__", "post_init"):
        setattr(module.LMCacheManager, name, _raising(getattr(module.LMCacheManager, name)))
    from lmcache.v1.cache_engine import LMCacheEngine, LMCacheEngineBuilder

    LMCacheEngine.post_init = _remembering(LMCacheEngine.post_init)
    stock = LMCacheEngineBuilder.get_or_create.__func__

    @functools.wraps(stock)
    def checked(cls: Any, instance_id: str, config: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            rank_url.check_settings(config)
            return stock(cls, instance_id, config, *args, **kwargs)
        except REFUSALS as error:
            remember(error)
            raise

    LMCacheEngineBuilder.get_or_create = classmethod(checked)


def _remembering(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return stock(*args, **kwargs)
        except REFUSALS as error:
            remember(error)
            raise

    return call


def _raising(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = stock(*args, **kwargs)
        if _refused:
            raise _refused.pop()
        return result

    return call


PATCH: Final = Patch(
    name="refusals",
    upstream="LMCache, no number: degraded mode after an error at start",
    summary="settings that cannot work end the start with one line",
    module="lmcache.v1.manager",
    touches=(
        "LMCacheManager.__init__",
        "LMCacheManager.post_init",
        "LMCacheEngine.post_init",
        "LMCacheEngineBuilder.get_or_create",
    ),
    check=check,
    apply=apply,
)
