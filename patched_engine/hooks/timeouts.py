"""The configured timeouts of this process, as its page's header has them."""

from __future__ import annotations

from patched_engine.page import Page

_NANOSECONDS = 1_000_000_000


def timeout_ns(page: Page, name: str) -> int:
    """One timeout in nanoseconds ("lookup_seconds", "blocking_seconds"); 0: not known."""
    timeouts = page.timeouts
    return int(timeouts.get(name, 0.0) * _NANOSECONDS)
