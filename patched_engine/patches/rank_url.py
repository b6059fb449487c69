"""`{rank}` in remote_url, checked before anything is built (LMCache #5548).

Our backend fills it in for itself. For another scheme its backend gets a copy of the configuration
with the URL filled in. The scheduler has no rank, so there it can only be refused.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Final

from patched_engine.patches import placeholders
from patched_engine.patches.patch import NotNeeded, Patch, code_names, require


def check_settings(config: Any) -> None:
    """Raises PlaceholderError for a remote_url that no rank can use as it stands."""
    url = str(config.remote_url or "")
    placeholders.check(url)
    if placeholders.RANK in url and config.enable_scheduler_bypass_lookup:
        raise placeholders.PlaceholderError(
            f"remote_url with {placeholders.RANK} and enable_scheduler_bypass_lookup: the scheduler"
            " has no rank and so no shard: switch enable_scheduler_bypass_lookup off"
        )


def check(module: Any) -> None:
    """RemoteBackend must read remote_url from the configuration it is given."""
    function = require(module.RemoteBackend, "__init__", {"remote_url"}, ("config", "metadata"))
    if "format" in code_names(function):
        raise NotNeeded("RemoteBackend fills in the URL by itself")


def apply(module: Any) -> None:
    """Fill the placeholder before RemoteBackend reads the URL."""
    stock = module.RemoteBackend.__init__

    @functools.wraps(stock)
    def filled(self: Any, config: Any, metadata: Any, *args: Any, **kwargs: Any) -> None:
        url = str(config.remote_url or "")
        if placeholders.placeholders(url) and not getattr(self, "fills_rank", False):
            config = copy.copy(config)
            config.remote_url = placeholders.fill(url, metadata.worker_id)
        stock(self, config, metadata, *args, **kwargs)

    module.RemoteBackend.__init__ = filled


PATCH: Final = Patch(
    name="rank-url",
    upstream="LMCache #5548",
    summary="{rank} in remote_url is the worker's rank; any other placeholder is refused at start",
    module="lmcache.v1.storage_backend.remote_backend",
    touches=("RemoteBackend.__init__",),
    check=check,
    apply=apply,
)
