"""The scheduler's asynchronous lookup client beside upstream's: aborts, time-outs, recomputing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patched_engine.sharding.recompute import Recompute


class Statuses(dict[str, int | None]):
    """The client's status of each lookup, None while it is under way: upstream's thread writes a
    number there at the moment when all ranks have answered."""

    def __init__(self, recompute: Recompute) -> None:
        super().__init__()
        self._recompute = recompute

    def __setitem__(self, lookup_id: str, status: int | None) -> None:
        super().__setitem__(lookup_id, status)
        if status is not None:
            self._recompute.ended(lookup_id, status)


def extend(client: Any, tokens_per_second: float = 0.0) -> None:
    """Have this client tell the ranks of aborts at once, survive being asked again after a
    time-out, and decline loads slower than `tokens_per_second` (0: never).

    The synchronous client is left as it is: its calls are over when it is asked.
    """
    cancel: Callable[[str], None] | None = getattr(client, "cancel_lookup", None)
    send: Callable[[str], None] | None = getattr(client, "_send_cleanup_message", None)
    if cancel is None or send is None:
        return
    recompute = Recompute(tokens_per_second) if tokens_per_second else None
    cached, look_up = client.lookup_cache, client.lookup

    def cancel_and_tell(lookup_id: str) -> None:
        cancel(lookup_id)
        send(lookup_id)
        if recompute is not None:
            recompute.ended(lookup_id, None)

    def lookup_cache(lookup_id: str) -> int | None:
        # A request that timed out and found no free blocks is asked for again; upstream has then
        # forgotten when it began, and a KeyError ends the engine.
        is_given_up = lookup_id in client.aborted_lookups
        if is_given_up and client.reqs_status.get(lookup_id, -1) is None:
            return 0
        found: int | None = cached(lookup_id)
        return found

    client.cancel_lookup = cancel_and_tell
    client.lookup_cache = lookup_cache
    if recompute is None:
        return

    def lookup(token_ids: Any, lookup_id: str, request_configs: Any = None) -> int | None:
        if recompute.is_declined():
            client.reqs_status[lookup_id] = 0  # as if the ranks had found nothing
            return 0
        recompute.began(lookup_id)
        found: int | None = look_up(token_ids, lookup_id, request_configs)
        return found

    client.reqs_status = Statuses(recompute)
    client.lookup = lookup
