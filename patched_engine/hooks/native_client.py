"""Looks into LMCache's compiled RESP client: each key's result, and the sockets it opened.

Its completions carry a result per key, which its Python side drops: a failed GET is reported as
loaded KV. And the server can say whether it owes an answer, once it is known which of its clients
are this process's: the local ends of the sockets go into the page's header.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.overdue import overdue
from patched_engine.hooks.wrap import FAILED, attach, when_imported
from patched_engine.page import Page

_ANSWERED = layout.COUNTER_INDEX["client_get_answered_keys"]
_FAILED_KEYS = layout.COUNTER_INDEX["client_get_failed_keys"]
MOST_CONNECTIONS = 64
# Connections come up in the client's own threads: look a few times, then now and then.
EAGER_LOOKS = 5
LOOK_EVERY = 10


class ObservedNative:
    """Stands for the compiled client and passes everything through; looks at what is drained."""

    def __init__(self, native: Any, client: Any) -> None:
        self._native = native
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def drain_completions(self) -> Any:
        """The native call, its result untouched."""
        items = self._native.drain_completions()
        if items:
            try:
                self._look(items)
            except Exception as error:
                recorder.fault("native completions", error)
        return items

    def _look(self, items: Any) -> None:
        page = recorder.current()
        if page is None:
            return
        for future_id, ok, _error, results in items:
            entry = self._client._pending.get(int(future_id))
            if entry is None or entry[1] != "batch_get":
                continue
            asked = len(entry[2][0]) if entry[2] else 0
            good = sum(map(bool, results)) if ok and results is not None else 0
            if ok and results is None:
                good = asked
            page.add(_ANSWERED, asked)
            page.add(_FAILED_KEYS, max(0, asked - good))


class NativeClientHook:
    """ConnectorClientBase.__init__(self, native_client, loop): put the observer in its place."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        page = recorder.current()
        if result is FAILED or page is None:
            return
        client = args[0]
        client._client = ObservedNative(client._client, client)
        watch_client(page)


def watch_client(page: Page, peer_port: int = 0) -> None:
    """From now on the heartbeat lists a client's sockets and its late GETs."""
    page.add_poller(ConnectionWatch(page, peer_port).poll)
    page.add_poller(lambda: overdue.poll(page))


class ConnectionWatch:
    """Lists this process's TCP connections to its shard in the header, from the heartbeat."""

    def __init__(self, page: Page, peer_port: int = 0) -> None:
        """`peer_port` is the shard's; 0: the port of the shard URL in the header."""
        self._page = page
        self._peer_port = peer_port
        self._looks = 0

    def poll(self) -> None:
        """Look if it is time; write only what changed."""
        self._looks += 1
        if self._looks > EAGER_LOOKS and self._looks % LOOK_EVERY:
            return
        port = self._peer_port or urlsplit(str(self._page.info().get("shard_url", ""))).port or 0
        found = sorted(local_ends(port))[:MOST_CONNECTIONS] if port else []
        if found != self._page.info().get("connections"):
            self._page.set_info({"connections": found})


def local_ends(peer_port: int) -> list[str]:
    """ "host:port" of this end of each of the process's TCP connections to `peer_port`."""
    ends = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family not in (
                    socket.AF_INET,
                    socket.AF_INET6,
                ):
                    continue
                if connection.getpeername()[1] == peer_port:
                    host, port = connection.getsockname()[:2]
                    ends.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except OSError:
            continue  # closed meanwhile, or not connected
    return ends


def install() -> None:
    """Hook the Python side of the compiled client."""
    when_imported(
        "lmcache.v1.storage_backend.native_clients.connector_client_base",
        lambda m: attach(m.ConnectorClientBase, "__init__", NativeClientHook()),
    )
