"""Puts our client under LMCache's `resp://` setting, in the place of its compiled one.

The compiled client hangs for ever on a missing key (LMCache #5551), loses completions that are
drained before their future is registered (#5547), and never connects again. None of this can be
mended from Python. What is replaced is one name: the class that `CreateStorageBackends` makes of a
remote_url, so that `remote_url`, closing and making a backend again, and an error at start stay as
they are. (A storage plugin would be an extension point; but LMCache makes a second one whenever
another backend is made again, and swallows an error of its constructor.)
"""

from __future__ import annotations

import functools
from typing import Any, Final

from patched_engine.patches.patch import NotNeeded, Patch, Refused, require

SCHEMES: Final = ("resp://", "resps://", "resp+unix://")
_PARAMETERS: Final = ("config", "metadata", "loop", "local_cpu_backend", "dst_device")


def is_ours(config: Any) -> bool:
    """Whether our backend takes this configuration: any resp URL. What of the other settings does
    not go with one, it refuses: LMCache's own client would hang or run on without a word."""
    return str(config.remote_url or "").startswith(SCHEMES)


def check(module: Any) -> None:
    """The factory must make its remote backend from the module's own name RemoteBackend."""
    if getattr(module.RemoteBackend, "__name__", "") == "remote_backend_of":
        raise NotNeeded("our backend is in place")
    require(module, "CreateStorageBackends", {"RemoteBackend", "remote_url"})
    require(module.RemoteBackend, "__init__", {"init_connection"}, _PARAMETERS)
    for name in ("contains", "batched_contains", "batched_get_blocking", "batched_submit_put_task"):
        require(module.RemoteBackend, name, set())
    if not isinstance(module.RemoteBackend, type):
        raise Refused("RemoteBackend is not a class")


def apply(module: Any) -> None:
    """Replace the name by a function that chooses the class."""
    stock = module.RemoteBackend

    @functools.wraps(stock, updated=())
    def remote_backend_of(config: Any, *args: Any, **kwargs: Any) -> Any:
        is_plugin = kwargs.get("plugin_name") is not None
        if is_plugin or not is_ours(config):
            return stock(config, *args, **kwargs)
        from patched_engine.resp.lmcache_backend import RespBackend

        return RespBackend(config, *args, **kwargs)

    remote_backend_of.__name__ = "remote_backend_of"
    module.RemoteBackend = remote_backend_of


PATCH: Final = Patch(
    name="resp-backend",
    upstream="LMCache #5547, #5551",
    summary="our RESP client under resp://: no lost completion, no hang, a result for each key",
    module="lmcache.v1.storage_backend",
    touches=("lmcache.v1.storage_backend.RemoteBackend (the name)",),
    check=check,
    apply=apply,
)
