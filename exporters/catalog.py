"""The one list of metrics: whoever emits, documents, graphs or alerts takes the name from here.

Prometheus' rules hold: prefix `stallscope_`, base units, `_total` on counters only, no colons, both
parts of a ratio as counters, no label per request. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "stallscope_"

MetricType = Literal["counter", "gauge"]
Emitter = Literal[
    "worker", "scheduler", "process", "engine", "shard", "exporter", "rule", "profile"
]

_PROCESS: Final = ("engine", "role", "rank")
_COLLECTIVE: Final = ("engine", "op", "basis")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is exposed.

    `emitted_by` is what one set of series stands for: a worker's or the scheduler's page
    ("process": either), an engine, a shard, the exporter itself, a rule or a
    file of profiles. `basis` says what the value rests on.
    """

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    help: str
    emitted_by: Emitter
    basis: str


def _counter(
    name: str,
    unit: str,
    help_text: str,
    basis: str,
    labels: tuple[str, ...] = _PROCESS,
    emitted_by: Emitter = "process",
) -> Metric:
    return Metric(f"{PREFIX}{name}_total", "counter", unit, labels, help_text, emitted_by, basis)


def _gauge(
    name: str,
    unit: str,
    help_text: str,
    basis: str,
    labels: tuple[str, ...] = _PROCESS,
    emitted_by: Emitter = "process",
) -> Metric:
    return Metric(f"{PREFIX}{name}", "gauge", unit, labels, help_text, emitted_by, basis)


# Counters of the page that are exposed as they stand: page name -> metric. Times come in ns.
PAGE_COUNTERS: Final[Mapping[str, Metric]] = {
    "steps": _counter("steps", "", "Engine steps finished.", "step hook"),
    "step_nanoseconds": _counter(
        "step_seconds", "seconds", "Time spent in engine steps.", "step hook, host clock"
    ),
    "collectives": _counter("collectives", "", "Collectives entered.", "torch.distributed hook"),
    "hook_faults": _counter(
        "hook_faults", "", "Errors raised inside our own hooks, kept from the engine.", "hooks"
    ),
    "ring_drops": _counter(
        "ring_drops",
        "",
        "Collectives that found no ring or event pair and are not recorded.",
        "page",
    ),
    "pending_drops": _counter(
        "pending_drops", "", "Operations that found the pending table full.", "page"
    ),
    "store_calls": _counter("store_calls", "", "Calls of LMCache's store.", "LMCache hook"),
    "store_tokens": _counter("store_tokens", "tokens", "Tokens to be stored.", "LMCache hook"),
    "store_chunks": _counter("store_chunks", "chunks", "Chunks copied to L1.", "LMCache hook"),
    "store_expected_chunks": _counter(
        "store_expected_chunks",
        "chunks",
        "Chunks c of the stored prompts with c mod W = rank: the rank's fair share.",
        "LMCache hook",
    ),
    "store_bytes": _counter("store_bytes", "bytes", "Bytes copied to L1.", "LMCache hook"),
    "store_nanoseconds": _counter(
        "store_seconds", "seconds", "Time inside store calls.", "LMCache hook, host clock"
    ),
    "load_calls": _counter("load_calls", "", "Calls of LMCache's retrieve.", "LMCache hook"),
    "load_asked_tokens": _counter(
        "load_asked_tokens", "tokens", "Tokens that retrieve was asked for.", "LMCache hook"
    ),
    "load_tokens": _counter(
        "load_tokens", "tokens", "Tokens that retrieve reported loaded.", "LMCache hook"
    ),
    "load_nanoseconds": _counter(
        "load_seconds", "seconds", "Time inside retrieve calls.", "LMCache hook, host clock"
    ),
    "lookup_calls": _counter("lookup_calls", "", "Calls of LMCache's lookup.", "LMCache hook"),
    "lookup_asked_tokens": _counter(
        "lookup_asked_tokens", "tokens", "Tokens looked up.", "LMCache hook"
    ),
    "lookup_hit_tokens": _counter(
        "lookup_hit_tokens", "tokens", "Tokens that lookup found.", "LMCache hook"
    ),
    "lookup_nanoseconds": _counter(
        "lookup_seconds", "seconds", "Time inside lookup calls.", "LMCache hook, host clock"
    ),
    "lookup_timeouts": _counter(
        "lookup_timeouts", "", "Lookups that ran into their configured timeout.", "LMCache hook"
    ),
    "put_l2_chunks": _counter(
        "l2_put_chunks", "chunks", "Chunks handed to the remote store.", "LMCache hook"
    ),
    "put_l2_bytes": _counter(
        "l2_put_bytes", "bytes", "Bytes handed to the remote store.", "LMCache hook"
    ),
    "client_calls": _counter(
        "client_calls", "", "Batched calls of the remote store's client.", "client hook"
    ),
    "client_asked_keys": _counter("client_asked_keys", "", "Keys in those calls.", "client hook"),
    "client_failed_calls": _counter(
        "client_failed_calls", "", "Those calls that raised or timed out.", "client hook"
    ),
    "client_get_answered_keys": _counter(
        "client_get_answered_keys", "", "Keys of GETs that the server answered.", "client hook"
    ),
    "client_get_failed_keys": _counter(
        "client_get_failed_keys", "", "Keys of GETs that brought nothing.", "client hook"
    ),
    "load_wasted_bytes": _counter(
        "load_wasted_bytes",
        "bytes",
        "Bytes that a prefetch brought from the remote store and nobody used.",
        "sharded store",
    ),
}

# Page counters that become one metric with a label: page name -> (metric, tier).
LOAD_CHUNKS: Final = _counter(
    "load_chunks", "chunks", "Chunks loaded, by tier.", "LMCache hook", (*_PROCESS, "tier")
)
LOAD_BYTES: Final = _counter(
    "load_bytes", "bytes", "Bytes loaded, by tier.", "LMCache hook", (*_PROCESS, "tier")
)
TIERED_COUNTERS: Final[Mapping[str, tuple[Metric, str]]] = {
    "load_l1_chunks": (LOAD_CHUNKS, "l1"),
    "load_l2_chunks": (LOAD_CHUNKS, "l2"),
    "load_l1_bytes": (LOAD_BYTES, "l1"),
    "load_l2_bytes": (LOAD_BYTES, "l2"),
}

PROCESS_STATE: Final = _gauge(
    "process_state",
    "",
    "1 for the state that the process is in (alive, frozen, dead), 0 for the others.",
    "record lock and heartbeat",
    (*_PROCESS, "state"),
)
HEARTBEAT_AGE: Final = _gauge(
    "heartbeat_age_seconds", "seconds", "Age of the process's last heartbeat (1 Hz).", "page"
)
TORN_RECORDS: Final = _counter(
    "torn_records", "", "Records that could not be read whole after 3 tries.", "page"
)
PENDING: Final = _gauge(
    "pending_operations",
    "",
    "Operations submitted and not completed.",
    "pending table",
    (*_PROCESS, "kind"),
)
PENDING_AGE: Final = _gauge(
    "pending_oldest_age_seconds",
    "seconds",
    "Age of the oldest pending operation; absent while none is.",
    "pending table",
    (*_PROCESS, "kind"),
)
PATCH_INFO: Final = _gauge(
    "patch_info",
    "",
    "1 for what became of each patch: applied, not_needed, refused, waiting, off, or other.",
    "page",
    (*_PROCESS, "patch", "state"),
)
KEY_NAMESPACE_INFO: Final = _gauge(
    "key_namespace_info",
    "",
    "1, with the fingerprint of the process's cache keys: only where it is equal are they shared.",
    "LMCache hook",
    (*_PROCESS, "fingerprint"),
)

_JOINED: Final = "joined rings; see the label"
COLLECTIVE_WAIT: Final = _counter(
    "collective_wait_seconds",
    "seconds",
    "Time this rank waited in collectives for the last rank to come.",
    _JOINED,
    (*_COLLECTIVE, "rank"),
    "worker",
)
COLLECTIVE_CHARGED: Final = _counter(
    "collective_charged_seconds",
    "seconds",
    "Time the other ranks waited for this one, in rank-seconds.",
    _JOINED,
    (*_COLLECTIVE, "rank"),
    "worker",
)
COLLECTIVE_LAST: Final = _counter(
    "collective_last_arrivals",
    "",
    "Collectives to which this rank came last.",
    _JOINED,
    (*_COLLECTIVE, "rank"),
    "worker",
)
COLLECTIVES_JOINED: Final = _counter(
    "collectives_joined",
    "",
    "Collectives joined over all their ranks.",
    _JOINED,
    _COLLECTIVE,
    "engine",
)
COLLECTIVES_UNJOINED: Final = _counter(
    "collectives_unjoined",
    "",
    "Collectives that could not be joined: an entry was lost, torn, or of another operation.",
    "joined rings",
    ("engine",),
    "engine",
)
COLLECTIVE_OPEN: Final = _gauge(
    "collective_open_seconds",
    "seconds",
    "Longest collective that others are in and this rank is not (rank empty: all are in and none "
    "has left).",
    "joined rings",
    ("engine", "op", "rank"),
    "worker",
)

_SHARD: Final = ("shard",)


def _of_shard(
    name: str, unit: str, help_text: str, basis: str = "INFO", labels: tuple[str, ...] = _SHARD
) -> Metric:
    return _gauge(f"shard_{name}", unit, help_text, basis, labels, "shard")


def _counted_by_shard(
    name: str, unit: str, help_text: str, basis: str = "INFO", labels: tuple[str, ...] = _SHARD
) -> Metric:
    return _counter(f"shard_{name}", unit, help_text, basis, labels, "shard")


SHARD_UP: Final = _of_shard("up", "", "1 if the shard answered INFO.")
# Figures of INFO that are exposed as they stand.
SHARD_FIGURES: Final[Mapping[str, Metric]] = {
    "loading": _of_shard("loading", "", "1 while the shard loads its data set."),
    "evicted_keys": _counted_by_shard("evicted_keys", "", "Keys evicted for memory."),
    "used_memory": _of_shard("used_memory_bytes", "bytes", "Memory that the shard uses."),
    "maxmemory": _of_shard(
        "max_memory_bytes", "bytes", "Memory at which the shard begins to evict; 0 is no limit."
    ),
    "uptime_in_seconds": _of_shard("uptime_seconds", "seconds", "Time since the shard's start."),
    "connected_clients": _of_shard("connected_clients", "", "Connections, ours included."),
    "maxclients": _of_shard("max_clients", "", "Connections at which the shard refuses more."),
    "blocked_clients": _of_shard("blocked_clients", "", "Connections in a blocking command."),
    "rejected_connections": _counted_by_shard(
        "rejected_connections", "", "Connections refused for their number."
    ),
    "keyspace_hits": _counted_by_shard("keyspace_hits", "", "Reads of keys that were there."),
    "keyspace_misses": _counted_by_shard("keyspace_misses", "", "Reads of keys that were not."),
}
SHARD_IO_THREADS: Final = _of_shard(
    "io_threads",
    "",
    "Threads for reading and writing, the main thread included; absent where CONFIG is refused.",
    "CONFIG GET",
)
# Commands of a cache, told apart; all others are one.
SHARD_COMMANDS: Final = ("get", "set", "exists")
OTHER_COMMANDS: Final = "other"


def _of_commands(name: str, unit: str, help_text: str) -> Metric:
    return _counted_by_shard(name, unit, help_text, "commandstats", (*_SHARD, "command"))


# A command's figures in INFO: name there -> metric. Times come in microseconds.
SHARD_COMMAND_FIGURES: Final[Mapping[str, Metric]] = {
    "calls": _of_commands("commands", "", "Commands run."),
    "usec": _of_commands(
        "command_seconds",
        "seconds",
        "Time in commands on the main thread; replies are mostly outside it.",
    ),
    "failed_calls": _of_commands("commands_failed", "", "Commands that ended in an error."),
    "rejected_calls": _of_commands("commands_rejected", "", "Commands refused before they ran."),
}
SHARD_CPU: Final = _counted_by_shard(
    "main_thread_cpu_seconds",
    "seconds",
    "CPU time of the main thread; with IO threads active it also spins.",
)
SHARD_ACTIVE: Final = _counted_by_shard(
    "main_thread_active_seconds",
    "seconds",
    "Time in which the main thread had work (Valkey 9.1 and later).",
)
SHARD_EVENT_LOOP: Final = _counted_by_shard(
    "event_loop_seconds",
    "seconds",
    "Time in turns of the event loop; with IO threads it also turns with nothing to do.",
)
SHARD_SATURATION: Final = _of_shard(
    "main_thread_saturation",
    "",
    "Share of the last 10 s in which the main thread was busy: between the bounds lower and upper.",
    "see the info metric",
    (*_SHARD, "bound"),
)
SHARD_SATURATION_INFO: Final = _of_shard(
    "main_thread_saturation_info",
    "",
    "1, with what the saturation rests on.",
    "version and io-threads",
    (*_SHARD, "basis"),
)
SHARD_COMMAND_SHARE: Final = _of_shard(
    "command_share",
    "",
    "Time in commands over the last 10 s: not the saturation, which it misses by up to all of it.",
    "commandstats",
)

SOURCE_UP: Final = _gauge(
    "source_up",
    "",
    "1 if the source was read at the last tick; 0 if not, and its values are absent.",
    "tick",
    ("source",),
    "exporter",
)
SOURCE_INFO: Final = _gauge(
    "source_info",
    "",
    "1, with the reason why a source could not be read, or not wholly.",
    "tick",
    ("source", "reason"),
    "exporter",
)
TICKS: Final = _counter("ticks", "", "Ticks finished.", "exporter", (), "exporter")
TICK_AGE: Final = _gauge(
    "tick_age_seconds", "seconds", "Age of the values at this scrape.", "exporter", (), "exporter"
)
TICK_DURATION: Final = _gauge(
    "tick_duration_seconds", "seconds", "Wall time of the last tick.", "exporter", (), "exporter"
)

_FINDING: Final = ("finding", "severity", "engine", "rank", "shard")
FINDING: Final = _gauge("finding", "", "1 while the finding stands.", "rules", _FINDING, "rule")
FINDING_SINCE: Final = _gauge(
    "finding_since_seconds", "seconds", "Age of the fault.", "rules", _FINDING, "rule"
)
FINDING_EVALUABLE: Final = _gauge(
    "finding_evaluable",
    "",
    "1 if the rule could decide at the last tick, 0 if it abstained.",
    "rules",
    ("finding",),
    "rule",
)


def _of_profile(
    name: str, unit: str, help_text: str, labels: tuple[str, ...] = ("rank",)
) -> Metric:
    """A recorded window's figure: a gauge, since no process counts it on."""
    return _gauge(f"profile_{name}", unit, help_text, "profiler", labels, "profile")


PROFILE_WALL: Final = _of_profile("wall_seconds", "seconds", "Length of the recorded window.", ())
PROFILE_WAIT: Final = _of_profile(
    "collective_wait_seconds", "seconds", "Wait in collectives for ranks that came later."
)
PROFILE_CHARGED: Final = _of_profile(
    "collective_charged_seconds", "seconds", "The other ranks' wait for this one, in rank-seconds."
)
PROFILE_BUSY: Final = _of_profile(
    "gpu_busy_seconds", "seconds", "Time with any work on the rank's GPU, collectives included."
)
PROFILE_WORK: Final = _of_profile(
    "gpu_work_seconds", "seconds", "Time with work on the rank's GPU other than collectives."
)
PROFILE_COPIED: Final = _of_profile(
    "copied_bytes", "bytes", "Bytes copied between GPU and host memory.", ("rank", "direction")
)
PROFILE_FINDING: Final = _of_profile(
    "finding", "", "1 for each finding of the window.", ("finding", "severity", "rank")
)
PROFILE_UNSEEN: Final = _of_profile("unseen", "", "How many things could not be told.", ())
# Written to a file by `stallscope trace --prom`; the exporter serves the others.
PROFILE_METRICS: Final = (
    PROFILE_WALL,
    PROFILE_WAIT,
    PROFILE_CHARGED,
    PROFILE_BUSY,
    PROFILE_WORK,
    PROFILE_COPIED,
    PROFILE_FINDING,
    PROFILE_UNSEEN,
)

_TIERED: Final = (LOAD_CHUNKS, LOAD_BYTES)
_OTHERS: Final = (
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
    SHARD_UP,
    *SHARD_FIGURES.values(),
    SHARD_IO_THREADS,
    *SHARD_COMMAND_FIGURES.values(),
    SHARD_CPU,
    SHARD_ACTIVE,
    SHARD_EVENT_LOOP,
    SHARD_SATURATION,
    SHARD_SATURATION_INFO,
    SHARD_COMMAND_SHARE,
    SOURCE_UP,
    SOURCE_INFO,
    TICKS,
    TICK_AGE,
    TICK_DURATION,
    FINDING,
    FINDING_SINCE,
    FINDING_EVALUABLE,
)
METRICS: Final[tuple[Metric, ...]] = (*PAGE_COUNTERS.values(), *_TIERED, *_OTHERS)
