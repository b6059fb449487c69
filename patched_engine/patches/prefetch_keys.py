"""A prefetching GET asks for the keys that its lookup asked for (LMCache #5550).

In MLA mode every lookup rewrites keys to worker 0's name. The asynchronous GET did not, so ranks
other than 0 found their chunks and then asked for keys that do not exist.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from patched_engine.patches.patch import NotNeeded, Patch, code_names, require

_REWRITE: Final = "with_new_worker_id"


def check(module: Any) -> None:
    """The lookup must rewrite its keys and the GET must not."""
    require(module.RemoteBackend, "batched_async_contains", {_REWRITE, "_mla_worker_id_as0_mode"})
    get = require(module.RemoteBackend, "batched_get_non_blocking", set(), ("keys", "lookup_id"))
    if _REWRITE in code_names(get):
        raise NotNeeded("batched_get_non_blocking rewrites its keys by itself")


def apply(module: Any) -> None:
    """Rewrite the keys, then call upstream's own."""
    stock = module.RemoteBackend.batched_get_non_blocking

    @functools.wraps(stock)
    async def rewritten(self: Any, lookup_id: str, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if self._mla_worker_id_as0_mode:
            keys = [key.with_new_worker_id(0) for key in keys]
        return await stock(self, lookup_id, keys, *args, **kwargs)

    module.RemoteBackend.batched_get_non_blocking = rewritten


PATCH: Final = Patch(
    name="prefetch-keys",
    upstream="LMCache #5550",
    summary="a prefetching GET asks for worker 0's keys in MLA mode, as its lookup did",
    module="lmcache.v1.storage_backend.remote_backend",
    touches=("RemoteBackend.batched_get_non_blocking",),
    check=check,
    apply=apply,
)
