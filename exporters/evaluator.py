"""One tick: read every source once, join, judge by every rule, order the findings.

Live use, the exporter and alerts all take their answer from here, so that they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from exporters import reasons
from exporters.collectives import KEPT_SECONDS, EngineJoiner
from exporters.readers.page import PageSample
from exporters.readers.pages import FolderSample, PageFolder
from exporters.readers.valkey import Shards
from exporters.rules import Rule
from exporters.snapshot import (
    Engine,
    Evaluation,
    Finding,
    Snapshot,
    Unseen,
    Verdict,
)

NANOSECONDS = 1e9
# A finding that comes back within this time is the same one, and keeps its onset.
SAME_FINDING_SECONDS = 10.0
_SEVERITY_ORDER = {"critical": 0, "warning": 1, "info": 2}

logger = logging.getLogger("stallscope")


class Evaluator:
    """Reads pages and shards, and judges them. Bad sources never raise: they are unseen.

    Not for several threads at once: one caller ticks, about once a second.
    """

    def __init__(
        self,
        pages_dir: Path | None,
        valkey_urls: Sequence[str] = (),
        rules: Sequence[Rule] = (),
    ) -> None:
        self._folder = PageFolder(pages_dir) if pages_dir is not None else None
        self._shards = Shards(valkey_urls)
        self._rules = tuple(rules)
        self._joiners: dict[str, EngineJoiner] = {}
        self._joined_at_seconds: dict[str, float] = {}
        self._memory = FindingMemory()

    def tick(self) -> Evaluation:
        """The picture now and every rule's verdict on it."""
        asked = self._shards.begin()
        now_ns = time.monotonic_ns()
        sample = self._folder.read(now_ns) if self._folder is not None else FolderSample((), ())
        # Ages and open times are taken after reading: a record written meanwhile is not younger
        # than 0 s.
        engines = self._engines(sample.pages, time.monotonic_ns())
        shards, unseen_shards = self._shards.read(asked)
        snapshot = Snapshot(
            now_seconds=now_ns / NANOSECONDS,
            unix_seconds=time.time(),
            engines=engines,
            shards=shards,
            unseen=(*sample.unseen, *_unseen_in(engines), *unseen_shards),
        )
        verdicts = tuple(self._judge(rule, snapshot) for rule in self._rules)
        findings = self._memory.date(
            [f for verdict in verdicts for f in verdict.findings], snapshot.now_seconds
        )
        order = {rule.name: i for i, rule in enumerate(self._rules)}
        return Evaluation(snapshot, worst_first(findings, order), verdicts)

    def close(self) -> None:
        """Let go of every page and connection."""
        if self._folder is not None:
            self._folder.close()
        self._shards.close()

    def _engines(self, pages: Iterable[PageSample], now_ns: int) -> tuple[Engine, ...]:
        by_id: dict[str, list[PageSample]] = {}
        for page in pages:
            by_id.setdefault(page.process.engine_id, []).append(page)
        now_seconds = now_ns / NANOSECONDS
        engines = []
        for engine_id, of_engine in sorted(by_id.items()):
            samples = _of_this_life(of_engine, now_seconds)
            joiner = self._joiners.setdefault(engine_id, EngineJoiner())
            self._joined_at_seconds[engine_id] = now_seconds
            workers = {
                _torch_rank(s): s
                for s in samples
                if "worker" in s.process.roles and s.process.rank is not None
            }
            engines.append(
                Engine(
                    engine_id=engine_id,
                    world_size=max(s.process.world_size for s in samples),
                    processes=tuple(
                        sorted(
                            (s.process for s in samples),
                            key=lambda p: (-1 if p.rank is None else p.rank, p.page),
                        )
                    ),
                    groups=joiner.update(workers, now_ns),
                )
            )
        for engine_id, at in list(self._joined_at_seconds.items()):
            if now_seconds - at > KEPT_SECONDS:
                del self._joined_at_seconds[engine_id], self._joiners[engine_id]
        return tuple(engines)

    def _judge(self, rule: Rule, snapshot: Snapshot) -> Verdict:
        try:
            return rule(snapshot)
        except Exception as error:  # one rule's fault must not cost the others' answers
            logger.exception("rule %s failed", rule.name)
            return Verdict(
                rule.name,
                abstained=f"the rule failed: {type(error).__name__}: {error}",
                reason=reasons.RULE_FAILED,
            )


class FindingMemory:
    """Keeps when each finding began, beyond what the records on the pages still show."""

    def __init__(self) -> None:
        self._began: dict[tuple[object, ...], tuple[float, float]] = {}  # began, last seen

    def date(self, findings: Iterable[Finding], now_seconds: float) -> list[Finding]:
        """The findings with `since_seconds` from the earliest onset known for each."""
        dated = []
        for finding in findings:
            key = (finding.id, finding.engine_id, finding.rank, finding.shard)
            began = now_seconds - finding.since_seconds
            if key in self._began:
                began = min(began, self._began[key][0])
            self._began[key] = (began, now_seconds)
            dated.append(_since(finding, now_seconds - began))
        self._began = {
            key: value
            for key, value in self._began.items()
            if now_seconds - value[1] <= SAME_FINDING_SECONDS
        }
        return dated


def worst_first(findings: Iterable[Finding], order: dict[str, int]) -> tuple[Finding, ...]:
    """Places (rank or shard) by their worst finding; at one place causes before symptoms, which
    is the order of the rules; then the oldest first."""
    listed = list(findings)
    worst: dict[tuple[object, ...], int] = {}
    for finding in listed:
        severity = _SEVERITY_ORDER[finding.severity]
        place = _place(finding)
        worst[place] = min(worst.get(place, severity), severity)
    return tuple(
        sorted(
            listed,
            key=lambda f: (
                worst[_place(f)],
                order.get(f.id, len(order)),
                _SEVERITY_ORDER[f.severity],
                -f.since_seconds,
            ),
        )
    )


def _place(finding: Finding) -> tuple[object, ...]:
    return finding.engine_id, finding.rank, finding.shard


def _since(finding: Finding, since_seconds: float) -> Finding:
    return dataclasses.replace(finding, since_seconds=since_seconds)


def _of_this_life(samples: list[PageSample], now_seconds: float) -> list[PageSample]:
    """Without the pages of processes that died before any of those that run was started: a run
    of more ranks was killed here before."""
    begins = [s.process.started_seconds for s in samples if s.process.liveness != "dead"]
    if not begins:
        return samples
    return [
        s
        for s in samples
        if s.process.liveness != "dead"
        or now_seconds - s.process.heartbeat_age_seconds >= min(begins)
    ]


def _torch_rank(sample: PageSample) -> int:
    """The rank by which process groups name this worker."""
    listed = sample.process.info.get("torch_rank")
    rank = listed if isinstance(listed, int) else sample.process.rank
    assert rank is not None  # asked only of workers with a rank
    return rank


def _unseen_in(engines: Iterable[Engine]) -> list[Unseen]:
    """What an engine's own pages lack: ranks, a writer, joinable collectives."""
    unseen = []
    for engine in engines:
        name = f"engine {engine.engine_id}"
        if all(p.liveness == "dead" for p in engine.processes):
            last = min(p.heartbeat_age_seconds for p in engine.processes)
            unseen.append(
                Unseen(
                    name,
                    reasons.NO_WRITER,
                    f"{name} has ended: none of its processes runs, the last one for {last:.0f} s",
                    "start the engine, or remove its pages from the folder",
                )
            )
            continue
        workers = engine.workers()
        for rank in range(engine.world_size):
            if rank not in workers:
                unseen.append(
                    Unseen(
                        f"{name} rank {rank}",
                        reasons.MISSING_RANK,
                        f"{name}: rank {rank} of {engine.world_size} has no page",
                        "see that worker's log for why it could not reserve one",
                    )
                )
        joined = any(g.totals for g in engine.groups)
        for group in engine.groups:
            if group.unseen_reason in (reasons.ASYNC_ONLY, reasons.UNJOINED) and not joined:
                what = (
                    "are all asynchronous, and host times of those say nothing about waiting"
                    if group.unseen_reason == reasons.ASYNC_ONLY
                    else "do not match between its ranks"
                )
                unseen.append(
                    Unseen(
                        f"{name} group {group.name}",
                        group.unseen_reason,
                        f"{name}: the collectives of group {group.name} {what}",
                    )
                )
    return unseen
