"""What becomes of each request in a scheduler: admitted, scheduled, first token, finished.

vLLM's scheduler is hooked; another engine's calls `patched_engine.requests` itself. Only counts go
to the page, and the time to the first token by the length of the prompt: nothing of one request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.page import Page

_C: Final = layout.COUNTER_INDEX
_PREFILL: Final = layout.MARK_INDEX["prefill_scheduled"]
_WAITING: Final = layout.GAUGE_INDEX["requests_waiting"]
_RUNNING: Final = layout.GAUGE_INDEX["requests_running"]
# More than a scheduler holds at once: beyond it the oldest is taken for forgotten by the engine.
MOST_REQUESTS: Final = 100_000


class _Request(NamedTuple):
    """One that has no first token yet."""

    arrived_unix_seconds: float
    prompt_tokens: int


class RequestLog:
    """The requests of this process's scheduler, each known until its first token.

    One thread calls it, the scheduler's. Nothing here raises, and without a page nothing is kept.
    """

    def __init__(self) -> None:
        self._prefilling: dict[str, _Request] = {}
        self._unfinished: dict[str, None] = {}

    def admitted(self, request_id: str, prompt_tokens: int, arrived_unix_seconds: float) -> None:
        """A request came in, which may have been at the frontend at an earlier time of the wall."""
        page = recorder.current()
        if page is None or request_id in self._unfinished:
            return
        try:
            for held in (self._prefilling, self._unfinished):
                if len(held) >= MOST_REQUESTS:
                    del held[next(iter(held))]
            self._prefilling[request_id] = _Request(arrived_unix_seconds, prompt_tokens)
            self._unfinished[request_id] = None
            page.add(_C["requests_admitted"])
        except Exception as error:
            recorder.fault("request log", error)

    def scheduled(self, tokens: Mapping[str, int], waiting: int, running: int) -> None:
        """One step was made up: the tokens of each request in it, and how many requests wait for
        their first step and how many have had it."""
        page = recorder.current()
        if page is None:
            return
        try:
            page.gauge(_WAITING, waiting)
            page.gauge(_RUNNING, running)
            if not tokens:
                return
            page.add(_C["scheduled_tokens"], sum(tokens.values()))
            few, many = sorted((self._prefilling, tokens), key=len)
            prefill = sum(tokens[each] for each in few if each in many)
            if prefill:
                page.add(_C["scheduled_prefill_tokens"], prefill)
                page.add(_C["prefill_steps"])
                page.mark(_PREFILL)
        except Exception as error:
            recorder.fault("request log", error)

    def first_token(
        self, request_id: str, engine_cached_tokens: int, external_cached_tokens: int
    ) -> None:
        """A prompt is done: so many of its tokens were in the engine's own cache, so many came
        from outside (LMCache). Later tokens of the request are ignored."""
        request = self._prefilling.pop(request_id, None)
        page = recorder.current()
        if request is None or page is None:
            return
        try:
            waited_seconds = max(0.0, time.time() - request.arrived_unix_seconds)
            _count_first(page, request.prompt_tokens, waited_seconds)
            page.add(_C["prompt_tokens"], request.prompt_tokens)
            page.add(_C["prompt_engine_cached_tokens"], engine_cached_tokens)
            page.add(_C["prompt_external_cached_tokens"], external_cached_tokens)
            source = "none"
            if engine_cached_tokens or external_cached_tokens:
                is_external = external_cached_tokens > engine_cached_tokens
                source = "external" if is_external else "engine"
            page.add(_C[f"requests_hit_{source}"])
        except Exception as error:
            recorder.fault("request log", error)

    def finished(self, request_id: str) -> None:
        """A request is over, whole or aborted."""
        self._prefilling.pop(request_id, None)
        page = recorder.current()
        if page is None or self._unfinished.pop(request_id, self) is self:
            return
        try:
            page.add(_C["requests_finished"])
        except Exception as error:
            recorder.fault("request log", error)


def _count_first(page: Page, prompt_tokens: int, waited_seconds: float) -> None:
    band = bisect_left(layout.TTFT_BANDS_TOKENS, prompt_tokens)
    bucket = bisect_left(layout.TTFT_BOUNDS_SECONDS, waited_seconds)
    page.add(_C[f"ttft_{band}_bucket_{bucket}"])
    page.add(_C[f"ttft_{band}_nanoseconds"], int(waited_seconds * 1e9))


requests: Final = RequestLog()
"""The one of this process."""
