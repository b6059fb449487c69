"""Records what our own client does, as `native_client` and `lmcache_client` do for LMCache's.

An operation stands in the page from submit to completion, with its first key; each key's result is
counted, and the sockets are listed in the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.lmcache_async import PrefetchGetHook
from patched_engine.hooks.lmcache_client import ClientHook
from patched_engine.hooks.lmcache_engine import RemotePutHook
from patched_engine.hooks.native_client import watch_client
from patched_engine.hooks.wrap import FAILED, attach, observed_coroutine, when_imported
from patched_engine.page import Page

_C = layout.COUNTER_INDEX


class ResultsHook(ClientHook):
    """A call that returns one KeyResult a key."""

    def done(self, page: Page, result: Any) -> None:
        if result is FAILED:
            page.add(_C["client_failed_calls"])
        elif self._kind == "get":
            page.add(_C["client_get_answered_keys"], len(result))
            page.add(_C["client_get_failed_keys"], sum(not item.ok for item in result))


class FutureHook(ClientHook):
    """A call that returns a future: pending until that is done."""

    def after(
        self,
        token: tuple[Page, int] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        if token is None or result is FAILED:
            super().after(token, args, kwargs, result)
            return
        page, slot = token
        result.add_done_callback(lambda _future: page.complete(slot))


class CallsHook:
    """RespCalls.__init__: from now on the heartbeat lists sockets and late GETs."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        page = recorder.current()
        if result is FAILED or page is None:
            return
        status = args[0].client.status
        page.set_info({"resp_engine": f"{status.name}: {status.reason}"[:160]})
        watch_client(page, args[0].client.endpoint.port)


def _hook_calls(module: Any) -> None:
    calls = module.RespCalls
    attach(calls, "__init__", CallsHook())
    attach(calls, "batch_get", ResultsHook("get", "blocking_seconds"), observed_coroutine)
    attach(calls, "batch_get_sync", ResultsHook("get", "blocking_seconds"))
    attach(calls, "batch_exists", ResultsHook("exists", "lookup_seconds"), observed_coroutine)
    attach(calls, "batch_exists_sync", ResultsHook("exists", "lookup_seconds"))
    attach(calls, "batch_set", FutureHook("set", "blocking_seconds"))


def _hook_backend(module: Any) -> None:
    attach(module.RespBackend, "batched_submit_put_task", RemotePutHook())
    attach(
        module.RespBackend, "batched_get_non_blocking", PrefetchGetHook("l2"), observed_coroutine
    )


def install_backend() -> None:
    """Hook our backend: what it moves goes to spans too, page or no page."""
    when_imported("patched_engine.resp.lmcache_backend", _hook_backend)


def install() -> None:
    """Hook our client's calls: they write to the page and nothing else."""
    when_imported("patched_engine.resp.calls", _hook_calls)
