"""Turn one tick's Evaluation into the samples of the catalog, and nothing that is not in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from exporters import catalog, page_layout, reasons
from exporters.catalog import Metric
from exporters.metrics_model import model_samples, shard_model_samples
from exporters.metrics_requests import request_samples
from exporters.metrics_shards import shard_samples
from exporters.sample import Sample
from exporters.snapshot import Engine, Evaluation, Liveness, Process

PAGES_SOURCE = "pages"
_NANOSECONDS = 1e9
_MOST_PATCHES = 16
_MOST_LABEL = 64  # characters
_PATCH_STATES = frozenset(("applied", "not_needed", "refused", "waiting", "off"))
_STATES: tuple[str, ...] = get_args(Liveness)


def samples(evaluation: Evaluation, pages_dir: Path | None) -> Iterator[Sample]:
    """All samples of a tick. What was not read at it has none.

    `pages_dir` is the folder that was asked for; its label is "pages", whatever its path.
    """
    for engine in evaluation.snapshot.engines:
        for process in engine.processes:
            yield from _process(process)
        yield from request_samples(engine)
        yield from model_samples(engine)
        yield from _collectives(engine)
    for shard in evaluation.snapshot.shards:
        yield from shard_samples(evaluation.snapshot, shard)
        yield from shard_model_samples(evaluation.snapshot, shard)
    yield from _sources(evaluation, pages_dir)
    yield from _findings(evaluation)


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _process(process: Process) -> Iterator[Sample]:
    labels = (process.engine_id, "_".join(sorted(process.roles)), _rank(process.rank))
    for name, metric in catalog.PAGE_COUNTERS.items():
        scale = _NANOSECONDS if name.endswith("_nanoseconds") else 1
        yield Sample(metric, labels, process.counters.get(name, 0) / scale)
    for name, (metric, tier) in catalog.TIERED_COUNTERS.items():
        yield Sample(metric, (*labels, tier), process.counters.get(name, 0))
    for state in _STATES:
        yield Sample(catalog.PROCESS_STATE, (*labels, state), float(state == process.liveness))
    yield Sample(catalog.HEARTBEAT_AGE, labels, process.heartbeat_age_seconds)
    yield Sample(catalog.TORN_RECORDS, labels, process.torn_records)
    for kind in page_layout.KINDS[1:]:
        ages = [p.age_seconds for p in process.pending if p.kind == kind]
        yield Sample(catalog.PENDING, (*labels, kind), len(ages))
        if ages:
            yield Sample(catalog.PENDING_AGE, (*labels, kind), max(ages))
    yield from _facts(process, labels)


def _facts(process: Process, labels: tuple[str, ...]) -> Iterator[Sample]:
    """What a page says of itself in words: cut short, since whatever wrote it may say anything."""
    listed = process.info.get("patches")
    if isinstance(listed, dict):
        states = {str(name)[:_MOST_LABEL]: str(text) for name, text in listed.items()}
        for name, text in list(states.items())[:_MOST_PATCHES]:
            state = text.partition(":")[0].replace(" ", "_")
            told = state if state in _PATCH_STATES else "other"
            yield Sample(catalog.PATCH_INFO, (*labels, name, told), 1.0)
    fingerprint = process.info.get("key_fingerprint")
    if isinstance(fingerprint, str) and fingerprint:
        yield Sample(catalog.KEY_NAMESPACE_INFO, (*labels, fingerprint[:_MOST_LABEL]), 1.0)


def _collectives(engine: Engine) -> Iterator[Sample]:
    """Summed over the engine's groups: a group's name is no label."""
    sums: defaultdict[tuple[Metric, tuple[str, ...]], float] = defaultdict(float)
    for group in engine.groups:
        for total in group.totals:
            key = (engine.engine_id, total.op, total.basis)
            sums[catalog.COLLECTIVES_JOINED, key] += total.count
            for i, rank in enumerate(group.ranks):
                at = (*key, str(rank))
                sums[catalog.COLLECTIVE_WAIT, at] += total.wait_seconds[i]
                sums[catalog.COLLECTIVE_CHARGED, at] += total.charged_seconds[i]
                sums[catalog.COLLECTIVE_LAST, at] += total.last_count[i]
    for (metric, labels), value in sums.items():
        yield Sample(metric, labels, value)
    unjoined = sum(group.unjoined for group in engine.groups)
    yield Sample(catalog.COLLECTIVES_UNJOINED, (engine.engine_id,), unjoined)
    longest: dict[tuple[str, str], float] = {}
    for group in engine.groups:
        for item in group.open:
            for missing in map(str, item.missing_ranks or ("",)):
                seen = longest.get((item.op, missing), 0.0)
                longest[item.op, missing] = max(seen, item.open_seconds)
    for (op, missing), seconds in longest.items():
        yield Sample(catalog.COLLECTIVE_OPEN, (engine.engine_id, op, missing), seconds)


def _sources(evaluation: Evaluation, pages_dir: Path | None) -> Iterator[Sample]:
    snapshot = evaluation.snapshot
    folder = str(pages_dir)
    unseen = {
        (PAGES_SOURCE if pages_dir is not None and u.source == folder else u.source, u.reason)
        for u in snapshot.unseen
    }
    down = {source for source, reason in unseen if reason != reasons.TORN}
    up = {shard.url for shard in snapshot.shards if shard.up}
    if pages_dir is not None and PAGES_SOURCE not in down:
        up.add(PAGES_SOURCE)
    for source in sorted(up | down):
        yield Sample(catalog.SOURCE_UP, (source,), float(source not in down))
    for source, reason in sorted(unseen):
        yield Sample(catalog.SOURCE_INFO, (source, reason), 1.0)


def _findings(evaluation: Evaluation) -> Iterator[Sample]:
    for f in evaluation.findings:
        labels = (f.id, f.severity, f.engine_id, _rank(f.rank), f.shard or "")
        yield Sample(catalog.FINDING, labels, 1.0)
        yield Sample(catalog.FINDING_SINCE, labels, f.since_seconds)
    for verdict in evaluation.verdicts:
        decided = not verdict.abstained or bool(verdict.findings)
        yield Sample(catalog.FINDING_EVALUABLE, (verdict.rule,), float(decided))


def by_metric(found: Iterable[Sample]) -> dict[Metric, list[Sample]]:
    """The samples grouped, in the order in which the metrics first came."""
    grouped: dict[Metric, list[Sample]] = {}
    for sample in found:
        grouped.setdefault(sample.metric, []).append(sample)
    return grouped
