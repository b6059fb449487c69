"""From the inputs to the answer: does the tier pay off, with how many shards, at what rho."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from detectors import thresholds
from exporters import model
from runbooks.sizing import post
from runbooks.sizing.inputs import THE_POST, Value
from runbooks.sizing.queue import MODES, Mode, Service, Spread, Stream, runs, spread

_ALWAYS: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Queue:
    """What the model's queue does in one mode; latencies in seconds, over all seeds."""

    p50_seconds: Spread
    p99_seconds: Spread
    most_in_flight: Spread
    gave_up_share: Spread


@dataclass(frozen=True, slots=True)
class Row:
    """One number of shards. `bytes_per_second` is what all of them deliver to one prompt."""

    shards: int
    bytes_per_second: float
    basis: str
    load_seconds: float
    rho: float
    pays_off: bool
    queues: Mapping[Mode, Queue]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `least_shards` None: no number up to the number of ranks is enough."""

    inputs: Mapping[str, Value]
    token_bytes: float
    break_even_bytes_per_second: float
    recompute_seconds: float
    seeds: int
    rows: tuple[Row, ...]
    chosen: Row
    least_shards_to_pay_off: int | None
    least_shards_for_rho: int | None


def make(inputs: Mapping[str, Value], seeds: int) -> Plan:
    """Every row is simulated over seeds 0 to `seeds` - 1."""
    ranks, chosen = int(inputs["ranks"].value), int(inputs["shards"].value)
    dry = {n: _row(inputs, n, 0) for n in range(1, ranks + 1)}
    pays = next((n for n, row in dry.items() if row.pays_off), None)
    calm = next((n for n, row in dry.items() if row.rho <= thresholds.RHO_WARNING), None)
    wanted = sorted({*(n for n in _ALWAYS if n <= ranks), chosen, ranks, pays or 1, calm or 1})
    rows = tuple(_row(inputs, n, seeds) for n in wanted)
    token_bytes = model.bytes_per_token(inputs["chunk-bytes"].value, inputs["chunk-tokens"].value)
    rate = inputs["prefill-rate"].value
    return Plan(
        inputs=inputs,
        token_bytes=token_bytes,
        break_even_bytes_per_second=model.break_even_bytes_per_second(token_bytes, rate),
        recompute_seconds=model.recompute_seconds(inputs["prompt-tokens"].value, rate),
        seeds=seeds,
        rows=rows,
        chosen=next(row for row in rows if row.shards == chosen),
        least_shards_to_pay_off=pays,
        least_shards_for_rho=calm,
    )


def shard_rate(inputs: Mapping[str, Value], shards: int) -> tuple[float, int, str]:
    """Bytes/s of each of so many shards, the loads in flight when that was measured, and whose
    figure it is. The post measured eight together, and they were faster than eight times one."""
    given = inputs["shard-gbps"]
    if given.source == THE_POST and shards >= post.EIGHT_SHARDS:
        each = post.EIGHT_SHARDS_BYTES_PER_SECOND / post.EIGHT_SHARDS
        return each, 1, "the post's eight, measured together"
    basis = "one shard's rate" if shards == 1 else f"{shards} times one shard's rate"
    return given.value * 1e9, int(inputs["loads-when-measured"].value), basis


def service(inputs: Mapping[str, Value], shards: int) -> tuple[Service, float, str]:
    """What a hit asks of so many shards; the load time as measured, and the basis."""
    each, loads, basis = shard_rate(inputs, shards)
    chunk_tokens = inputs["chunk-tokens"].value
    chunks = model.chunk_count(inputs["prompt-tokens"].value, chunk_tokens)
    counts = model.shard_chunks(chunks, int(inputs["ranks"].value), shards)
    parts = [model.load_seconds(n * inputs["chunk-bytes"].value, each) for n in counts]
    engine_seconds = inputs["engine-seconds"].value
    rate = inputs["prefill-rate"].value
    made = Service(
        shard_seconds=tuple(parts),
        engine_seconds=engine_seconds,
        recompute_seconds=model.recompute_seconds(inputs["prompt-tokens"].value, rate),
        give_up_seconds=inputs["give-up"].value,
        slowdown_per_load=inputs["slowdown"].value,
        most_loads=post.MOST_LOADS,
    )
    alone = made.stretch(loads)
    return (
        dataclasses.replace(made, shard_seconds=tuple(part / alone for part in parts)),
        max(parts),
        basis,
    )


def stream(inputs: Mapping[str, Value]) -> Stream:
    """The requests that are simulated."""
    count = int(inputs["requests"].value)
    return Stream(count, count / inputs["rate"].value)


def _row(inputs: Mapping[str, Value], shards: int, seeds: int) -> Row:
    asked, load_seconds, basis = service(inputs, shards)
    chunk_tokens = inputs["chunk-tokens"].value
    chunks = model.chunk_count(inputs["prompt-tokens"].value, chunk_tokens)
    per_second = chunks * inputs["chunk-bytes"].value / load_seconds
    token_bytes = model.bytes_per_token(inputs["chunk-bytes"].value, chunk_tokens)
    line = model.break_even_bytes_per_second(token_bytes, inputs["prefill-rate"].value)
    offered = stream(inputs)
    queues: dict[Mode, Queue] = {}
    for mode in MODES if seeds else ():
        found = runs(mode, offered, asked, seeds)
        queues[mode] = Queue(
            spread(found, lambda run: run.percentile(0.5)),
            spread(found, lambda run: run.percentile(0.99)),
            spread(found, lambda run: run.most_in_flight),
            spread(found, lambda run: run.gave_up_share),
        )
    return Row(
        shards=shards,
        bytes_per_second=per_second,
        basis=basis,
        load_seconds=load_seconds,
        rho=model.utilisation(inputs["rate"].value, load_seconds + asked.engine_seconds),
        pays_off=per_second > line,
        queues=queues,
    )
