"""The one table of the log lines of LMCache and vLLM that say what no metric of theirs says.

Standard library only: the handler inside the engine and the reader of log files use the same table.
A pattern holds a few distinctive words of a message, is searched for anywhere in it, and is linear
in its length. One event is one line: where a library logs several for one event, one is listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

Package = Literal["lmcache", "vllm"]

# What happened, in a word. Append only: a position is the layout of whoever counts them.
KINDS: Final = (
    "degraded",  # the cache gave up, every lookup misses: by failed initialisation or health check
    "recovered",  # its health check passed again
    "unhealthy_skip",  # one operation was skipped because of it
    "lookup_timeout",  # a lookup was given up and its request recomputed
    "remote_timeout",  # a read from the remote store was given up
    "remote_lost",  # the connection to the remote store could not be made, or broke
    "double_free",  # a reference was given back twice
    "double_unpin",  # a pin was given back twice
    "invalidated",  # memory was used after it was freed
    "pin_expired",  # a pin that nobody gave back was taken away
    "load_failed",  # a request got less KV than its lookup promised
    "not_retrieved",  # a chunk that the lookup saw was not there at the load
    "wrong_group",  # a receiver got nothing by broadcast: it is alone in its group
    "lookups_differ",  # the ranks disagree on the length of the prefix
    "memory_pressure",  # no CPU memory to store all chunks
    "requests_failed",  # requests were failed because their KV could not be loaded
    "requests_recomputed",  # requests were scheduled again because of it
    "engine_died",  # the engine core ended with an exception
    "worker_died",  # a worker process ended
    "step_timeout",  # a worker did not answer its scheduler in time
    "ranks_hang",  # a process waits for another one to take or give a message
    "handoff_expired",  # the decode side did not fetch the KV in time
    "handoff_failed",  # the transfer of the KV to the decode side failed
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One message: `kind` is one of KINDS, `logger` what the logger's name begins with, `pattern` a
    regular expression searched for in the message, `versions` the releases whose text was read."""

    kind: str
    package: Package
    logger: str
    pattern: re.Pattern[str]
    versions: tuple[str, ...]


_LMCACHE = ("0.5.5", "0.5.6")
_VLLM = ("0.32.0",)


def _lmcache(kind: str, module: str, pattern: str) -> LogLine:
    return LogLine(kind, "lmcache", f"lmcache.{module}", re.compile(pattern), _LMCACHE)


def _vllm(kind: str, module: str, pattern: str) -> LogLine:
    return LogLine(kind, "vllm", f"vllm.{module}", re.compile(pattern), _VLLM)


LINES: Final = (
    # Its last words say so too, behind a traceback as long as it likes.
    _lmcache("degraded", "v1.manager", r"Failed to initialize LMCacheManager components:"),
    _lmcache("degraded", "v1.manager", r"Failed during post_init:"),
    _lmcache("degraded", "v1.health_monitor", r"unhealthy, entering degraded mode"),
    _lmcache("degraded", "integration", r"server is unhealthy . entering degraded mode"),
    _lmcache("recovered", "v1.health_monitor", r"System recovered, restoring"),
    _lmcache("unhealthy_skip", "v1.cache_engine", r"LMCache is unhealthy, skipping"),
    _lmcache("lookup_timeout", "v1.lookup_client", r"still waiting for async lookup after"),
    _lmcache("lookup_timeout", "v1.rpc", r"Timeout occurred for rank \d+, recreating"),
    _lmcache("lookup_timeout", "integration", r"LOOKUP to \S+ timed out after"),
    _lmcache("lookup_timeout", "integration", r"QUERY_PREFETCH_STATUS to \S+ timed out"),
    _lmcache("remote_timeout", "v1.storage_backend", r"get blocking timeout, trigger cancel"),
    _lmcache("remote_timeout", "v1.storage_backend", r"batched_async_contains timed out"),
    _lmcache("remote_timeout", "v1.storage_backend", r"batched_get_non_blocking timed out"),
    _lmcache("remote_lost", "v1.storage_backend", r"initialize/re-establish remote connection:"),
    _lmcache("remote_lost", "v1.storage_backend", r"Remote connection failed in"),
    _lmcache("double_free", "v1.memory_management", r"Double free occurred"),
    _lmcache("double_unpin", "v1.memory_management", r"Double unpin occurred"),
    _lmcache("invalidated", "v1.memory_", r"Trying to (?:access|free) an invalidated MemoryObj"),
    _lmcache("pin_expired", "v1.pin_monitor", r"Pin timeout detected for MemoryObj"),
    _lmcache("load_failed", "integration", r"failed to load \d+ tokens across"),
    _lmcache("not_retrieved", "v1.cache_engine", r"in the storage, but it can't be retrieved"),
    _lmcache("wrong_group", "v1.cache_engine", r"received None chunk_count"),
    _lmcache("lookups_differ", "v1.lookup_client", r"Lookup results .{0,60}differ across"),
    _lmcache("memory_pressure", "v1.cache_engine", r"Local cpu memory under pressure"),
    _vllm("requests_failed", "v1.core.sched", r"Failing \d+ request\(s\) due to KV load failure"),
    _vllm("requests_recomputed", "v1.core.sched", r"Recovered from KV load failure"),
    _vllm("engine_died", "v1.engine", r"EngineCore encountered a fatal error"),
    _vllm("engine_died", "v1.engine", r"EngineCore failed to start"),
    _vllm("worker_died", "v1.executor", r"Worker proc \S+ died unexpectedly"),
    _vllm("step_timeout", "v1", r"RPC call to \w+ timed out"),
    _vllm(
        "ranks_hang",
        "distributed.device_communicators.shm_broadcast",
        r"No available shared memory broadcast block found",
    ),
    _vllm("handoff_expired", "distributed.kv_transfer", r"Releasing expired KV blocks for request"),
    _vllm("handoff_failed", "distributed.kv_transfer", r"NIXL transfer failure:"),
)


@cache
def _lines_of(package: str, version: str) -> tuple[LogLine, ...]:
    """The lines of one release; of a release that was not read, those of all others."""
    known = [line for line in LINES if line.package == package]
    named = release(version)
    return tuple(line for line in known if named in line.versions) or tuple(known)


def release(version: str) -> str:
    """ "0.32.0" of "0.32.0+cpu" and "0.5.5" of "0.5.5-g05a013b2": builds of one release."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return found[0] if found is not None else version


def is_known(package: str, version: str) -> bool:
    """Whether the texts of this release were read, so that no count of a kind means no event."""
    named = release(version)
    return any(named in line.versions for line in LINES if line.package == package)


def find(
    message: str,
    logger: str = "",
    versions: Mapping[str, str] | None = None,
    package: Package | None = None,
) -> LogLine | None:
    """The entry that a message is of, None for any other.

    `logger` is the name of its logger ("lmcache.v1.manager"); "" where a log file does not say it,
    which leaves the words alone to decide, among those of `package` where that much is known.
    `versions` maps "lmcache" and "vllm" to their releases.
    """
    named = package or logger.partition(".")[0]
    for name in (named,) if named else ("lmcache", "vllm"):
        for line in _lines_of(name, (versions or {}).get(name, "")):
            if (not logger or logger.startswith(line.logger)) and line.pattern.search(message):
                return line
    return None
