"""The metrics that come from the Valkey shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporters.catalog_metric import Metric, counter, gauge

_SHARD: Final = ("shard",)


def _of_shard(
    name: str, unit: str, help_text: str, basis: str = "INFO", labels: tuple[str, ...] = _SHARD
) -> Metric:
    return gauge(f"shard_{name}", unit, help_text, basis, labels, "shard")


def _counted_by_shard(
    name: str, unit: str, help_text: str, basis: str = "INFO", labels: tuple[str, ...] = _SHARD
) -> Metric:
    return counter(f"shard_{name}", unit, help_text, basis, labels, "shard")


SHARD_UP: Final = _of_shard("up", "", "1 if the shard answered INFO.")
SHARD_ANSWER_AGE: Final = _of_shard(
    "answer_age_seconds",
    "seconds",
    "Age of the shard's answer at the tick, to add to the tick's own: 0 unless it was slow.",
    "exporter",
)
# Figures of INFO that are exposed as they stand.
SHARD_FIGURES: Final[Mapping[str, Metric]] = {
    "loading": _of_shard("loading", "", "1 while the shard loads its data set."),
    "evicted_keys": _counted_by_shard("evicted_keys", "", "Keys evicted for memory."),
    "used_memory": _of_shard("used_memory_bytes", "bytes", "Memory that the shard uses."),
    "maxmemory": _of_shard(
        "max_memory_bytes", "bytes", "Memory at which the shard begins to evict; 0 is no limit."
    ),
    "uptime_in_seconds": _of_shard("uptime_seconds", "seconds", "Time since the shard's start."),
    "mem_clients_normal": _of_shard(
        "client_buffers_bytes", "bytes", "Memory in the buffers of connections."
    ),
    "total_net_input_bytes": _counted_by_shard("net_input_bytes", "bytes", "Bytes received."),
    "total_net_output_bytes": _counted_by_shard("net_output_bytes", "bytes", "Bytes sent."),
    "connected_clients": _of_shard("connected_clients", "", "Connections, ours included."),
    "maxclients": _of_shard("max_clients", "", "Connections at which the shard refuses more."),
    "blocked_clients": _of_shard("blocked_clients", "", "Connections in a blocking command."),
    "rejected_connections": _counted_by_shard(
        "rejected_connections", "", "Connections refused for their number."
    ),
    "keyspace_hits": _counted_by_shard("keyspace_hits", "", "Reads of keys that were there."),
    "keyspace_misses": _counted_by_shard("keyspace_misses", "", "Reads of keys that were not."),
}
SHARD_INFO: Final = _of_shard(
    "info", "", "1, with the server's version and role.", labels=(*_SHARD, "version", "role")
)
SHARD_KEYS: Final = _of_shard("keys", "", "Keys in all databases.")
SHARD_LOG_ENTRIES: Final = _of_shard(
    "command_log_entries",
    "",
    "Entries in the server's log of slow or large commands, which drops its oldest.",
    "COMMANDLOG LEN, SLOWLOG LEN",
    (*_SHARD, "log"),
)
_SAMPLE: Final = "SCAN and MEMORY USAGE, a few keys a second"
SHARD_RANK_KEYS: Final = _of_shard(
    "rank_keys", "", "Chunks by the rank in their names, at the last whole scan.", _SAMPLE,
    (*_SHARD, "key_rank"),
)  # fmt: skip
SHARD_RANK_BYTES: Final = _of_shard(
    "rank_bytes", "bytes", "Memory of those chunks, at the last whole scan.", _SAMPLE,
    (*_SHARD, "key_rank"),
)  # fmt: skip
SHARD_SCAN_AGE: Final = _of_shard(
    "key_scan_age_seconds", "seconds", "Time since the last whole scan of the keys ended.", _SAMPLE
)
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
# Percentiles as the server keeps them: name there -> label. Prometheus' lint leaves the label
# `quantile` to summaries.
SHARD_PERCENTILES: Final[Mapping[str, str]] = {"p50": "50", "p99": "99"}
SHARD_LATENCY: Final = _of_shard(
    "command_latency_seconds",
    "seconds",
    "Time of a command on the main thread, a percentile of all since the server's start.",
    "latencystats",
    (*_SHARD, "command", "percentile"),
)
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

SHARD_METRICS: Final[tuple[Metric, ...]] = (
    SHARD_UP,
    SHARD_ANSWER_AGE,
    *SHARD_FIGURES.values(),
    SHARD_INFO,
    SHARD_KEYS,
    SHARD_LOG_ENTRIES,
    SHARD_RANK_KEYS,
    SHARD_RANK_BYTES,
    SHARD_SCAN_AGE,
    SHARD_IO_THREADS,
    *SHARD_COMMAND_FIGURES.values(),
    SHARD_LATENCY,
    SHARD_CPU,
    SHARD_ACTIVE,
    SHARD_EVENT_LOOP,
    SHARD_SATURATION,
    SHARD_SATURATION_INFO,
    SHARD_COMMAND_SHARE,
)
