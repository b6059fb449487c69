"""Puts each store, load and lookup on a profiler's timeline: an NVTX range of domain `stallscope`.

Without a tool the `nvtx` package (0.2.17) hands out a dummy domain: then `domain` stays None, and a
hook pays for one comparison. A tool names itself in NVTX_INJECTION64_PATH before the process
starts.

A range's message is what is known when it opens ("load req-7 rank 1"), its category the kind. What
moved is known at its end: a mark just inside the range says it ("7 chunks, 458752 bytes").
"""

from __future__ import annotations

import functools
import os
from typing import Any

from patched_engine import recorder

INJECTION_VARIABLE = "NVTX_INJECTION64_PATH"
DOMAIN = "stallscope"
MOST_KEPT = 1024  # messages whose attributes are kept; a request has a few, and each may recur

domain: Any = None  # the tool's, once one listens
_kept: dict[tuple[str, str], Any] = {}


def wanted() -> bool:
    """Whether a profiler injects itself into this process."""
    return bool(os.environ.get(INJECTION_VARIABLE))


def start() -> None:
    """Open the domain if a tool listens. A process that has no tool does not import nvtx."""
    global domain
    if domain is not None or not wanted():
        return
    try:
        import nvtx
    except ImportError:
        return  # no package, no ranges: nothing else here needs it
    try:
        opened = nvtx.get_domain(DOMAIN)
        if opened.get_event_attributes(message="stallscope") is not None:  # None: the dummy
            domain = opened
    except Exception as error:
        recorder.fault("nvtx", error)


def push(kind: str, request_id: str, rank: int | None) -> bool:
    """Open a range in this thread; rank None is the scheduler's. Returns whether to `pop` it."""
    try:
        where = "scheduler" if rank is None else f"rank {rank}"
        domain.push_range(_attributes(f"{kind} {request_id} {where}", kind))
    except Exception as error:
        recorder.fault("nvtx", error)
        return False
    return True


def pop(chunks: int, size_bytes: int) -> None:
    """Mark what moved and close this thread's innermost range; closes it whatever else fails."""
    try:
        if chunks:
            domain.mark(_attributes(f"{chunks} chunks, {size_bytes} bytes", "moved"))
    except Exception as error:
        recorder.fault("nvtx", error)
    try:
        domain.pop_range()
    except Exception as error:
        recorder.fault("nvtx", error)


def _attributes(message: str, category: str) -> Any:
    """A message's event attributes; never changed after they were made, so threads share them.

    NVTX takes strings of this package registered only. The package keeps each for ever, so the
    strings are registered past its cache: what is kept here is bounded, what the tool keeps is its
    own record of the run.
    """
    key = (message, category)
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        found = domain.get_event_attributes(category=category)
        found.message = _register()(domain, message)
        _kept[key] = found
    return found


@functools.cache
def _register() -> Any:
    """Domain.get_registered_string without its unbounded cache, where it has one."""
    method = type(domain).get_registered_string
    return getattr(method, "__wrapped__", method)
