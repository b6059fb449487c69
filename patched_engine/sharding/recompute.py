"""Load or recompute: whether the next prompt is looked for at all, decided by the scheduler alone.

A hit pays off only where the tiers bring a prompt's tokens faster than the engine computes them
(B > B* = s R, the same as tokens/s loaded > R). Where they do not, loading makes prefill slower.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from patched_engine.sharding.settings import SWITCH, ShardingRefused

BELOW: Final = "pcp_shard_recompute_below"
"""extra_config: R, the tokens/s at which the engine computes a cold prompt; absent: always load."""
LEAST_TOKENS: Final = 16 * 256
"""A shorter load says more of its latency than of the tiers' rate."""
LOADS: Final = 5
"""So many loads are measured before one is declined, and the median of so many decides."""
PROBE_EVERY: Final = 16
"""While loads are declined, so many requests apart one is loaded all the same, to measure."""

logger = logging.getLogger("stallscope")


def rate_of(config: Any) -> float:
    """R of the settings, 0 where the switch is not set. Raises ShardingRefused for what is none."""
    given = config.get_extra_config_value(BELOW, None)
    if given is None:
        return 0.0
    try:
        rate = float(given)
    except (TypeError, ValueError):
        rate = math.nan
    if isinstance(given, bool) or not (math.isfinite(rate) and rate > 0):
        raise ShardingRefused(
            f"{SWITCH}: {BELOW} is {given!r}: give the tokens/s at which a cold prompt is computed"
        )
    if not config.enable_async_loading:
        raise ShardingRefused(
            f"{SWITCH}: {BELOW} is set without enable_async_loading: the scheduler sees how long a"
            " load takes only there; set it, or unset this"
        )
    return rate


class Recompute:
    """Measures loads that had the tiers to themselves, and says whether to load the next prompt.

    `is_declined` and `began` are for the scheduler's thread, `ended` for the one that takes the
    ranks' answers.
    """

    def __init__(
        self, tokens_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least = tokens_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self._shared: set[str] = set()
        self._rates: deque[float] = deque(maxlen=LOADS)
        self._declined = 0
        self._is_slow = False

    def is_declined(self) -> bool:
        """Whether the next prompt is computed whole."""
        with self._lock:
            if not self._is_slow:
                return False
            self._declined += 1
            return self._declined % PROBE_EVERY != 0

    def began(self, lookup_id: str) -> None:
        """The ranks were asked for this prompt."""
        with self._lock:
            if self._began:  # under contention the tiers' rate to one prompt cannot be seen
                self._shared.update(self._began, (lookup_id,))
            self._began[lookup_id] = self._clock()

    def ended(self, lookup_id: str, tokens: int | None) -> None:
        """All ranks have answered with so many tokens; None: nobody waits for them any more."""
        with self._lock:
            began = self._began.pop(lookup_id, None)
            if lookup_id in self._shared:
                self._shared.discard(lookup_id)
            elif began is not None and tokens is not None and tokens >= LEAST_TOKENS:
                self._rates.append(tokens / max(self._clock() - began, 1e-9))
                self._decide()

    def _decide(self) -> None:
        if len(self._rates) < LOADS:
            return
        rate = statistics.median(self._rates)
        if (rate < self._least) != self._is_slow:
            self._is_slow = not self._is_slow
            logger.warning(
                "stallscope: the cache brings %.0f tokens/s to a prompt and the engine computes"
                " %.0f: prompts are %s from here on",
                rate,
                self._least,
                "computed, not loaded" if self._is_slow else "loaded again",
            )
