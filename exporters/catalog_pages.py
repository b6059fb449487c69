"""The metrics that come from the pages: processes, and collectives joined over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporters.catalog_metric import COLLECTIVE_LABELS, PROCESS_LABELS, Metric, counter, gauge

# Counters of the page that are exposed as they stand: page name -> metric. Times come in ns.
PAGE_COUNTERS: Final[Mapping[str, Metric]] = {
    "steps": counter("steps", "", "Engine steps finished.", "step hook"),
    "step_nanoseconds": counter(
        "step_seconds", "seconds", "Time spent in engine steps.", "step hook, host clock"
    ),
    "collectives": counter("collectives", "", "Collectives entered.", "torch.distributed hook"),
    "hook_faults": counter(
        "hook_faults", "", "Errors raised inside our own hooks, kept from the engine.", "hooks"
    ),
    "ring_drops": counter(
        "ring_drops",
        "",
        "Collectives that found no ring or event pair and are not recorded.",
        "page",
    ),
    "pending_drops": counter(
        "pending_drops", "", "Operations that found the pending table full.", "page"
    ),
    "store_calls": counter("store_calls", "", "Calls of LMCache's store.", "LMCache hook"),
    "store_tokens": counter("store_tokens", "tokens", "Tokens to be stored.", "LMCache hook"),
    "store_chunks": counter("store_chunks", "chunks", "Chunks copied to L1.", "LMCache hook"),
    "store_expected_chunks": counter(
        "store_expected_chunks",
        "chunks",
        "Chunks c of the stored prompts with c mod W = rank: the rank's fair share.",
        "LMCache hook",
    ),
    "store_bytes": counter("store_bytes", "bytes", "Bytes copied to L1.", "LMCache hook"),
    "store_nanoseconds": counter(
        "store_seconds", "seconds", "Time inside store calls.", "LMCache hook, host clock"
    ),
    "load_calls": counter("load_calls", "", "Calls of LMCache's retrieve.", "LMCache hook"),
    "load_asked_tokens": counter(
        "load_asked_tokens", "tokens", "Tokens that retrieve was asked for.", "LMCache hook"
    ),
    "load_tokens": counter(
        "load_tokens", "tokens", "Tokens that retrieve reported loaded.", "LMCache hook"
    ),
    "load_nanoseconds": counter(
        "load_seconds", "seconds", "Time inside retrieve calls.", "LMCache hook, host clock"
    ),
    "lookup_calls": counter("lookup_calls", "", "Calls of LMCache's lookup.", "LMCache hook"),
    "lookup_asked_tokens": counter(
        "lookup_asked_tokens", "tokens", "Tokens looked up.", "LMCache hook"
    ),
    "lookup_hit_tokens": counter(
        "lookup_hit_tokens", "tokens", "Tokens that lookup found.", "LMCache hook"
    ),
    "lookup_nanoseconds": counter(
        "lookup_seconds", "seconds", "Time inside lookup calls.", "LMCache hook, host clock"
    ),
    "lookup_timeouts": counter(
        "lookup_timeouts", "", "Lookups that ran into their configured timeout.", "LMCache hook"
    ),
    "put_l2_chunks": counter(
        "l2_put_chunks", "chunks", "Chunks handed to the remote store.", "LMCache hook"
    ),
    "put_l2_bytes": counter(
        "l2_put_bytes", "bytes", "Bytes handed to the remote store.", "LMCache hook"
    ),
    "client_calls": counter(
        "client_calls", "", "Batched calls of the remote store's client.", "client hook"
    ),
    "client_asked_keys": counter("client_asked_keys", "", "Keys in those calls.", "client hook"),
    "client_failed_calls": counter(
        "client_failed_calls", "", "Those calls that raised or timed out.", "client hook"
    ),
    "client_get_answered_keys": counter(
        "client_get_answered_keys", "", "Keys of GETs that the server answered.", "client hook"
    ),
    "client_get_failed_keys": counter(
        "client_get_failed_keys", "", "Keys of GETs that brought nothing.", "client hook"
    ),
    "load_wasted_bytes": counter(
        "load_wasted_bytes",
        "bytes",
        "Bytes that a prefetch brought from the remote store and nobody used.",
        "sharded store",
    ),
    "throttled_nanoseconds": counter(
        "throttled_seconds",
        "seconds",
        "Time in which the container's CPU quota held this process.",
        "cgroup cpu.stat",
    ),
    "runqueue_nanoseconds": counter(
        "runqueue_seconds",
        "seconds",
        "Time in which the main thread was ready and had no CPU.",
        "schedstat",
    ),
    "major_faults": counter("major_faults", "", "Page faults that waited for a disk.", "getrusage"),
    "gc_pauses": counter("gc_pauses", "", "Garbage collections of the interpreter.", "gc hook"),
    "gc_nanoseconds": counter(
        "gc_seconds", "seconds", "Time in garbage collections.", "gc hook, host clock"
    ),
    "load_short_calls": counter(
        "load_short_calls",
        "",
        "Calls of retrieve that brought less than the lookup before them had found.",
        "LMCache hook",
    ),
    "prefetch_late_calls": counter(
        "prefetch_late_calls",
        "",
        "Prefetches that ended after their lookup's timeout: their request was recomputed.",
        "LMCache hook",
    ),
}

# Page counters that become one metric with a label: page name -> (metric, tier).
LOAD_CHUNKS: Final = counter(
    "load_chunks", "chunks", "Chunks loaded, by tier.", "LMCache hook", (*PROCESS_LABELS, "tier")
)
LOAD_BYTES: Final = counter(
    "load_bytes", "bytes", "Bytes loaded, by tier.", "LMCache hook", (*PROCESS_LABELS, "tier")
)
TIERED_COUNTERS: Final[Mapping[str, tuple[Metric, str]]] = {
    "load_l1_chunks": (LOAD_CHUNKS, "l1"),
    "load_l2_chunks": (LOAD_CHUNKS, "l2"),
    "load_l1_bytes": (LOAD_BYTES, "l1"),
    "load_l2_bytes": (LOAD_BYTES, "l2"),
}

PROCESS_STATE: Final = gauge(
    "process_state",
    "",
    "1 for the state that the process is in (alive, frozen, dead), 0 for the others.",
    "record lock and heartbeat",
    (*PROCESS_LABELS, "state"),
)
HEARTBEAT_AGE: Final = gauge(
    "heartbeat_age_seconds", "seconds", "Age of the process's last heartbeat (1 Hz).", "page"
)
TORN_RECORDS: Final = counter(
    "torn_records", "", "Records that could not be read whole after 3 tries.", "page"
)
PENDING: Final = gauge(
    "pending_operations",
    "",
    "Operations submitted and not completed.",
    "pending table",
    (*PROCESS_LABELS, "kind"),
)
PENDING_AGE: Final = gauge(
    "pending_oldest_age_seconds",
    "seconds",
    "Age of the oldest pending operation; absent while none is.",
    "pending table",
    (*PROCESS_LABELS, "kind"),
)
PATCH_INFO: Final = gauge(
    "patch_info",
    "",
    "1 for what became of each patch: applied, not_needed, refused, waiting, off, or other.",
    "page",
    (*PROCESS_LABELS, "patch", "state"),
)
KEY_NAMESPACE_INFO: Final = gauge(
    "key_namespace_info",
    "",
    "1, with the fingerprint of the process's cache keys: only where it is equal are they shared.",
    "LMCache hook",
    (*PROCESS_LABELS, "fingerprint"),
)

_JOINED: Final = "joined rings; see the label"
COLLECTIVE_WAIT: Final = counter(
    "collective_wait_seconds",
    "seconds",
    "Time this rank waited in collectives for the last rank to come.",
    _JOINED,
    (*COLLECTIVE_LABELS, "rank"),
    "worker",
)
COLLECTIVE_CHARGED: Final = counter(
    "collective_charged_seconds",
    "seconds",
    "Time the other ranks waited for this one, in rank-seconds.",
    _JOINED,
    (*COLLECTIVE_LABELS, "rank"),
    "worker",
)
COLLECTIVE_LAST: Final = counter(
    "collective_last_arrivals",
    "",
    "Collectives to which this rank came last.",
    _JOINED,
    (*COLLECTIVE_LABELS, "rank"),
    "worker",
)
COLLECTIVES_JOINED: Final = counter(
    "collectives_joined",
    "",
    "Collectives joined over all their ranks.",
    _JOINED,
    COLLECTIVE_LABELS,
    "engine",
)
COLLECTIVES_UNJOINED: Final = counter(
    "collectives_unjoined",
    "",
    "Collectives that could not be joined: an entry was lost, torn, or of another operation.",
    "joined rings",
    ("engine",),
    "engine",
)
COLLECTIVE_OPEN: Final = gauge(
    "collective_open_seconds",
    "seconds",
    "Longest collective that others are in and this rank is not (rank empty: all are in and none "
    "has left).",
    "joined rings",
    ("engine", "op", "rank"),
    "worker",
)

PAGE_METRICS: Final[tuple[Metric, ...]] = (
    *PAGE_COUNTERS.values(),
    LOAD_CHUNKS,
    LOAD_BYTES,
    PROCESS_STATE,
    HEARTBEAT_AGE,
    TORN_RECORDS,
    PENDING,
    PENDING_AGE,
    PATCH_INFO,
    KEY_NAMESPACE_INFO,
    COLLECTIVE_WAIT,
    COLLECTIVE_CHARGED,
    COLLECTIVE_LAST,
    COLLECTIVES_JOINED,
    COLLECTIVES_UNJOINED,
    COLLECTIVE_OPEN,
)
