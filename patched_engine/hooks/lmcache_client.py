"""Records what is pending: operations of the native client, lookups of the scheduler.

An entry stands in the page from submit to completion. One that never completes is the evidence
that the post's Bottleneck 4 had to find by hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder, telemetry
from patched_engine.hooks.lmcache_engine import error_of, facts
from patched_engine.hooks.overdue import overdue
from patched_engine.hooks.timeouts import timeout_ns
from patched_engine.hooks.work import whole_chunks
from patched_engine.hooks.wrap import FAILED, attach, observed, observed_coroutine, when_imported
from patched_engine.page import Page
from patched_engine.telemetry import ranges, spans

_C = layout.COUNTER_INDEX

# Method of ConnectorClientBase -> kind, and which configured timeout it is waited under.
CLIENT_METHODS: dict[str, tuple[str, str]] = {
    "batch_get": ("get", "blocking_seconds"),
    "batch_set": ("set", "blocking_seconds"),
    "batch_exists": ("exists", "lookup_seconds"),
    "batch_get_sync": ("get", "blocking_seconds"),
    "batch_set_sync": ("set", "blocking_seconds"),
    "batch_exists_sync": ("exists", "lookup_seconds"),
}


_local = threading.local()  # .timed_out: of the lookup under way in this thread


class _PendingHook:
    """Stands in the pending table for as long as the call lasts."""

    def __init__(self, kind: str, timeout: str) -> None:
        self._kind = kind
        self._timeout = timeout

    def _enter(self, key_count: int, first_key: str) -> tuple[Page, int] | None:
        page = recorder.current()
        if page is None:
            return None
        timeout = timeout_ns(page, self._timeout)
        return page, page.submit(self._kind, timeout, key_count, first_key)

    def after(
        self,
        token: tuple[Page, int] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        if token is None:
            return
        page, slot = token
        page.complete(slot)
        self.done(page, result)

    def done(self, page: Page, result: Any) -> None:
        """Count what came of it."""


class ClientHook(_PendingHook):
    """(self, keys, ...) of the native client."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Page, int] | None:
        keys = args[1] if len(args) > 1 else kwargs["keys"]
        entered = self._enter(len(keys), keys[0] if keys else "")
        if entered is not None:
            entered[0].add(_C["client_calls"])
            entered[0].add(_C["client_asked_keys"], len(keys))
            if self._kind == "get":
                overdue.hold(entered[1], self._kind, keys)
        return entered

    def after(
        self,
        token: tuple[Page, int] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        if token is not None:
            overdue.release(token[1])  # before its slot is free for another call
        super().after(token, args, kwargs, result)

    def done(self, page: Page, result: Any) -> None:
        if result is FAILED:
            page.add(_C["client_failed_calls"])


class TransportHook(_PendingHook):
    """ZmqReqRepClientTransport.send_and_recv_all(self, msg): the scheduler's synchronous lookup.

    It answers with an empty list after its timeout, which the client reports as no hit.
    """

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Page, int] | None:
        message = args[1] if len(args) > 1 else kwargs["msg"]
        return self._enter(len(message[0]), str(message[2]) if len(message) > 2 else "")

    def after(
        self,
        token: tuple[Page, int] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        _local.timed_out = result is FAILED or not result
        super().after(token, args, kwargs, result)

    def done(self, page: Page, result: Any) -> None:
        if result is FAILED or not result:
            page.add(_C["lookup_timeouts"])


class LookupClientHook:
    """LMCacheLookupClient.lookup(self, token_ids, lookup_id, ...): the scheduler's view of it."""

    def before(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Page | None, int, bool] | None:
        page = recorder.current()
        if page is not None:
            start_ns = page.mark(layout.MARK_INDEX["lookup_started"])
        elif spans.outbox is not None or ranges.domain is not None:
            start_ns = time.monotonic_ns()
        else:
            return None
        _local.timed_out = False
        has_range = ranges.domain is not None and ranges.push(
            "lookup", _lookup_id(args, kwargs), None
        )
        return page, start_ns, has_range

    def after(
        self,
        token: tuple[Page | None, int, bool] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        if token is None:
            return
        page, start_ns, has_range = token
        if has_range:
            ranges.pop(0, 0)
        end_ns = (
            page.mark(layout.MARK_INDEX["lookup_finished"])
            if page is not None
            else time.monotonic_ns()
        )
        asked = len(args[1] if len(args) > 1 else kwargs["token_ids"])
        found = int(result) if isinstance(result, int) else 0
        try:
            if spans.outbox is not None:
                spans.finished(
                    spans.Operation(
                        "lookup",
                        start_ns,
                        end_ns,
                        None,
                        _lookup_id(args, kwargs),
                        asked,
                        found,
                        whole_chunks(found, args[0].config.chunk_size),
                        0,
                        "",
                        error=error_of(result) or ("timeout" if _local.timed_out else ""),
                    )
                )
        finally:
            if page is not None:
                page.add(_C["lookup_calls"])
                page.add(_C["lookup_asked_tokens"], asked)
                page.add(_C["lookup_hit_tokens"], found)
                page.add(_C["lookup_nanoseconds"], end_ns - start_ns)
                number = layout.lookup_number(_lookup_id(args, kwargs))
                page.operation(
                    layout.KIND_INDEX["lookup"], 0, start_ns, end_ns, found, 0, number, 0
                )


def _lookup_id(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return str(args[2] if len(args) > 2 else kwargs["lookup_id"])


class FactoryHook:
    """LookupClientFactory.create_lookup_client(config, metadata, ...): this is the scheduler."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        config = args[0] if args else kwargs["config"]
        metadata = args[1] if len(args) > 1 else kwargs["metadata"]
        recorder.identify("scheduler", None, **facts(config, metadata))
        telemetry.start()

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


def _hook_native_client(module: Any) -> None:
    for name, (kind, timeout) in CLIENT_METHODS.items():
        wrapper = observed if name.endswith("_sync") else observed_coroutine
        attach(module.ConnectorClientBase, name, ClientHook(kind, timeout), wrapper)


def install() -> None:
    """Hook the native client's Python side and the scheduler's lookup client."""
    when_imported(
        "lmcache.v1.storage_backend.native_clients.connector_client_base", _hook_native_client
    )
    when_imported(
        "lmcache.v1.rpc.zmq_transport",
        lambda m: attach(
            m.ZmqReqRepClientTransport,
            "send_and_recv_all",
            TransportHook("lookup", "lookup_seconds"),
        ),
    )
    when_imported(
        "lmcache.v1.lookup_client.lmcache_lookup_client",
        lambda m: attach(m.LMCacheLookupClient, "lookup", LookupClientHook()),
    )
    when_imported(
        "lmcache.v1.lookup_client.factory",
        lambda m: attach(m.LookupClientFactory, "create_lookup_client", FactoryHook()),
    )
