"""The inputs of a sizing that a running engine's pages can give, from one look at them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

from detectors import thresholds
from exporters import model
from exporters.snapshot import Engine, Snapshot
from runbooks.compose import live_evaluator
from runbooks.sizing.inputs import Value

_SOURCE: Final = "the engine's pages"
_LEAST_BUSY_SECONDS: Final = 1.0
_HITS: Final = ("requests_hit_none", "requests_hit_engine", "requests_hit_external")


def read(pages: Path) -> tuple[dict[str, Value], tuple[str, ...]]:
    """By flag; and a line for each thing that the pages do not tell (yet)."""
    evaluator = live_evaluator(pages, ())
    try:
        snapshot = evaluator.tick().snapshot
    finally:
        evaluator.close()
    unseen = [item.detail for item in snapshot.unseen]
    engines = [e for e in snapshot.engines if any(p.liveness == "alive" for p in e.processes)]
    if not engines:
        return {}, (*unseen, f"no engine runs that has its pages in {pages}: all inputs are others")
    engine = max(engines, key=lambda e: _total(e, "requests_admitted"))
    if len(engines) > 1:
        unseen.append(f"of {len(engines)} engines only {engine.engine_id}, which had most requests")
    found, missing = of_engine(engine, snapshot)
    return {flag: Value(value, _SOURCE) for flag, value in found.items()}, (*unseen, *missing)


def of_engine(engine: Engine, snapshot: Snapshot) -> tuple[dict[str, float], list[str]]:
    """Values by flag, and why others are missing."""
    found: dict[str, float] = {}
    missing: list[str] = []
    workers = engine.workers()
    facts: Mapping[str, object] = next((w.info for w in workers.values()), {})
    found["ranks"] = float(max(engine.world_size, 1))
    template = facts.get("shard_url")
    if isinstance(template, str) and template:
        found["shards"] = found["ranks"] if "{rank}" in template else 1.0
    chunk_tokens = facts.get("chunk_tokens")
    if isinstance(chunk_tokens, int) and chunk_tokens > 0:
        found["chunk-tokens"] = float(chunk_tokens)
        if engine.model.token_bytes:
            found["chunk-bytes"] = engine.model.token_bytes * chunk_tokens
    if "chunk-bytes" not in found:
        missing.append("s: no rank has stored or loaded a chunk yet")
    timeouts = facts.get("timeouts")
    wait = timeouts.get("lookup_seconds") if isinstance(timeouts, Mapping) else None
    if isinstance(wait, int | float) and wait > 0:
        found["give-up"] = float(wait)
    _requests(engine, snapshot, found, missing)
    _prefill(engine, found, missing)
    loads = model.lone_loads(engine, snapshot.engines, thresholds.BREAK_EVEN_CHUNKS)
    if len(loads) >= thresholds.BREAK_EVEN_LOADS:
        whole = median(load.bytes_per_second for load in loads)
        found["shard-gbps"] = whole / 1e9 / found.get("shards", 1.0)
    else:
        missing.append(
            f"what the tier delivers: {len(loads)} loads of {thresholds.BREAK_EVEN_CHUNKS} chunks "
            f"and more were alone, {thresholds.BREAK_EVEN_LOADS} are needed"
        )
    return found, missing


def _requests(
    engine: Engine, snapshot: Snapshot, found: dict[str, float], missing: list[str]
) -> None:
    admitted = _total(engine, "requests_admitted")
    begun = [p.started_seconds for p in engine.processes if "scheduler" in p.roles]
    seconds = snapshot.now_seconds - max(begun, default=snapshot.now_seconds)
    if admitted < model.LEAST_REQUESTS or seconds < model.LEAST_SECONDS:
        missing.append(
            f"lambda: {admitted} requests in {seconds:.0f} s; {model.LEAST_REQUESTS} and "
            f"{model.LEAST_SECONDS:.0f} s are needed"
        )
    else:
        found["rate"] = admitted / seconds
    done = sum(_total(engine, name) for name in _HITS)
    if done >= model.LEAST_REQUESTS:
        found["prompt-tokens"] = _total(engine, "prompt_tokens") / done
    else:
        missing.append(f"the length of prompts: {done} are done, {model.LEAST_REQUESTS} are needed")


def _prefill(engine: Engine, found: dict[str, float], missing: list[str]) -> None:
    tokens = _total(engine, "scheduled_prefill_tokens")
    busy = max(
        (w.counters.get("step_nanoseconds", 0) / 1e9 for w in engine.workers().values()),
        default=0.0,
    )
    if _total(engine, "load_calls"):
        missing.append(
            "R: loads and prefills cannot be told apart by one look; divide the exporter's "
            "stallscope_model_cold_prefill_tokens_total by ..._seconds_total for --prefill-rate"
        )
    elif tokens <= 0 or busy < _LEAST_BUSY_SECONDS:
        missing.append("R: it has hardly computed a prompt yet")
    else:
        found["prefill-rate"] = tokens / busy


def _total(engine: Engine, name: str) -> int:
    return sum(process.counters.get(name, 0) for process in engine.processes)
