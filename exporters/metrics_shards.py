"""The samples of the shards: what INFO says, what rests on two of them, and what else was asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from exporters import catalog
from exporters.sample import Sample
from exporters.saturation import command_sums, number, recent
from exporters.snapshot import Shard, Snapshot

_MICROSECONDS: Final = 1e6
_MOST_LABEL: Final = 64  # characters


def shard_samples(snapshot: Snapshot, shard: Shard) -> Iterator[Sample]:
    """All samples of one shard; of one that is down, only that it is."""
    yield Sample(catalog.SHARD_UP, (shard.url,), float(shard.up))
    if shard.up:
        # An answer that comes after its tick is shown by the next one, and by then has its age.
        asked_seconds = shard.read_seconds - shard.took_seconds
        age_seconds = max(0.0, snapshot.now_seconds - asked_seconds)
        yield Sample(catalog.SHARD_ANSWER_AGE, (shard.url,), age_seconds)
        yield from _figures(shard)
        yield from _latency(shard)
        yield from _signals(snapshot, shard)
        yield from _saturation(snapshot, shard)


def _figures(shard: Shard) -> Iterator[Sample]:
    """What INFO says as it stands; a figure that this server does not have has no sample."""
    at = (shard.url,)
    for name, metric in catalog.SHARD_FIGURES.items():
        if (value := number(shard.info, name)) is not None:
            yield Sample(metric, at, value)
    yield Sample(catalog.SHARD_INFO, (*at, _version(shard), _told(shard, "role")), 1.0)
    databases = [d for name, d in shard.info.items() if re.fullmatch(r"db\d+", name)]
    keys = [number(d, "keys") for d in databases if isinstance(d, Mapping)]
    yield Sample(catalog.SHARD_KEYS, at, sum(count or 0 for count in keys))
    if shard.io_threads is not None:
        yield Sample(catalog.SHARD_IO_THREADS, at, shard.io_threads)
    if (active := number(shard.info, "used_active_time_main_thread")) is not None:
        yield Sample(catalog.SHARD_ACTIVE, at, active)
    if (loop := number(shard.info, "eventloop_duration_sum")) is not None:
        yield Sample(catalog.SHARD_EVENT_LOOP, at, loop / _MICROSECONDS)
    user = number(shard.info, "used_cpu_user_main_thread")
    system = number(shard.info, "used_cpu_sys_main_thread")
    if user is not None and system is not None:
        yield Sample(catalog.SHARD_CPU, at, user + system)
    for (command, name), value in command_sums(shard.info).items():
        scale = _MICROSECONDS if name == "usec" else 1
        yield Sample(catalog.SHARD_COMMAND_FIGURES[name], (*at, command), value / scale)


def _saturation(snapshot: Snapshot, shard: Shard) -> Iterator[Sample]:
    found = recent(snapshot, shard)
    if found is None:
        return
    at = (shard.url,)
    yield Sample(catalog.SHARD_SATURATION, (*at, "lower"), found.lower)
    yield Sample(catalog.SHARD_SATURATION, (*at, "upper"), found.upper)
    yield Sample(catalog.SHARD_SATURATION_INFO, (*at, found.basis), 1.0)
    if found.command_share is not None:
        yield Sample(catalog.SHARD_COMMAND_SHARE, at, found.command_share)


def _latency(shard: Shard) -> Iterator[Sample]:
    for command in catalog.SHARD_COMMANDS:
        told = shard.info.get(f"latency_percentiles_usec_{command}")
        if not isinstance(told, Mapping):
            continue
        for name, percentile in catalog.SHARD_PERCENTILES.items():
            if (spent := number(told, name)) is not None:
                labels = (shard.url, command, percentile)
                yield Sample(catalog.SHARD_LATENCY, labels, spent / _MICROSECONDS)


def _signals(snapshot: Snapshot, shard: Shard) -> Iterator[Sample]:
    """What was asked for beyond INFO."""
    for log, entries in shard.log_entries.items():
        yield Sample(catalog.SHARD_LOG_ENTRIES, (shard.url, log), entries)
    if (found := shard.key_sample) is not None:
        for rank, count in found.keys.items():
            yield Sample(catalog.SHARD_RANK_KEYS, (shard.url, rank), count)
            yield Sample(catalog.SHARD_RANK_BYTES, (shard.url, rank), found.bytes[rank])
        age_seconds = max(0.0, snapshot.now_seconds - found.read_seconds)
        yield Sample(catalog.SHARD_SCAN_AGE, (shard.url,), age_seconds)


def _told(shard: Shard, name: str) -> str:
    """A word of INFO, cut short: whatever answered may say anything."""
    return str(shard.info.get(name, ""))[:_MOST_LABEL]


def _version(shard: Shard) -> str:
    return _told(shard, "valkey_version") or _told(shard, "redis_version")
