"""The scheduler's side of LMCache's lookups, called as vLLM's connector calls it."""

from __future__ import annotations

import time
from typing import Any

from lab import kv
from lab.settings import LOOKUP_TIMEOUT_SECONDS
from lab.streams import Request


class Lookups:
    """Asks LMCache how much of a waiting request's KV there is.

    The synchronous client answers in the call; the asynchronous one has every rank look up and
    prefetch, and is asked again in each scheduling pass until it answers or gives up.
    """

    def __init__(self, client: Any) -> None:
        self.calls = 0
        self.timeouts = 0
        self._client = client
        self._begun_seconds: dict[str, float] = {}

    def ask(self, request: Request) -> int | None:
        """Tokens found, 0 also after a timeout; None while the ranks are still looking."""
        hit = self._client.lookup_cache(request.id)
        if hit == -1:
            self.calls += 1
            begun = self._begun_seconds[request.id] = time.monotonic()
            tokens = kv.prompt_tokens(request.block_ids, request.length_tokens)
            hit = self._client.lookup(tokens, lookup_id=request.id)
            # This call answers 0 for a timeout and for a miss alike; only a timeout takes so long.
            took = time.monotonic() - begun
            self.timeouts += hit == 0 and took >= LOOKUP_TIMEOUT_SECONDS * 0.95
        elif hit == 0 and request.id in getattr(self._client, "aborted_lookups", ()):
            self.timeouts += 1
        return None if hit is None else int(hit)

    def take(self, request: Request) -> float:
        """The request is admitted: forget it. How long its lookup took, in seconds."""
        self._client.clear_lookup_status(request.id)
        return time.monotonic() - self._begun_seconds.pop(request.id)
