"""One tick: read every source once, join, judge by every rule, order the findings.

Live use, the exporter and alerts all take their answer from here, so that they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from exporters import reasons
from exporters.collectives import KEPT_SECONDS, EngineJoiner
from exporters.model_joiner import ModelJoiner
from exporters.prefix import PrefixJoiner
from exporters.readers.page import PageSample, plain
from exporters.readers.pages import FolderSample, PageFolder
from exporters.readers.shard_access import Access
from exporters.readers.shard_url import without_credentials
from exporters.readers.valkey import Shards
from exporters.rules import Rule
from exporters.snapshot import (
    KEPT_PICTURES,
    Engine,
    EngineModel,
    Evaluation,
    Finding,
    Process,
    ShardQuestion,
    Snapshot,
    Unseen,
    Verdict,
)

NANOSECONDS = 1e9
# A finding that comes back within this time is the same one, and keeps its onset.
SAME_FINDING_SECONDS = 10.0
# One look takes as many pictures as a rule may ask for, and no more: a person waits for it.
MOST_PICTURES = 3
PICTURE_INTERVAL_SECONDS = 1.0
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
        access: Access | None = None,
        with_samples: bool = False,
        looks: Sequence[Callable[[Snapshot], Snapshot]] = (),
    ) -> None:
        """`looks` add to a picture what else was asked for (stacks, logs), before it is judged."""
        self._folder = PageFolder(pages_dir) if pages_dir is not None else None
        self._shards = Shards(valkey_urls, access, with_samples)
        self._rules = tuple(rules)
        self._looks = tuple(looks)
        self._joiners: dict[str, EngineJoiner] = {}
        self._prefixes: dict[str, PrefixJoiner] = {}
        self._models: dict[str, ModelJoiner] = {}
        self._joined_at_seconds: dict[str, float] = {}
        self._memory = FindingMemory()
        self._earlier: deque[Snapshot] = deque(maxlen=KEPT_PICTURES)
        self._questions: tuple[ShardQuestion, ...] = ()

    def look(self) -> Evaluation:
        """One answer for a person: a tick, and a second and third one a second apart where a rule
        asks for them, about something suspicious that one picture cannot decide."""
        evaluation = self.tick()
        for _ in range(MOST_PICTURES - 1):
            if not any(verdict.again for verdict in evaluation.verdicts):
                break
            due_seconds = evaluation.snapshot.now_seconds + PICTURE_INTERVAL_SECONDS
            time.sleep(max(0.0, due_seconds - time.monotonic()))
            evaluation = self.tick()
        return evaluation

    def tick(self) -> Evaluation:
        """The picture now and every rule's verdict on it."""
        asked = self._shards.begin(self._questions)
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
            unseen=(
                *sample.unseen,
                *_unseen_in(engines),
                *unseen_shards,
                *(_other_shards(engines) if shards else ()),
            ),
            earlier=tuple(self._earlier),
        )
        for look in self._looks:
            snapshot = look(snapshot)
        self._earlier.append(_kept(snapshot))
        # Asked with the next tick: what is suspicious is still so a second later.
        self._questions = tuple(q for rule in self._rules for q in self._ask(rule, snapshot))
        verdicts = tuple(judge(rule, snapshot) for rule in self._rules)
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
                            (self._with_shard(s.process) for s in samples),
                            key=lambda p: (-1 if p.rank is None else p.rank, p.page),
                        )
                    ),
                    groups=joiner.update(workers, now_ns),
                    prefix_limits=self._prefixes.setdefault(engine_id, PrefixJoiner()).update(
                        {p.rank: p for s in workers.values() if (p := s.process).rank is not None}
                    ),
                    model=self._models.setdefault(engine_id, ModelJoiner()).update(
                        [s.process for s in samples], now_seconds
                    ),
                )
            )
        for engine_id, at in list(self._joined_at_seconds.items()):
            if now_seconds - at > KEPT_SECONDS:
                del self._joined_at_seconds[engine_id], self._joiners[engine_id]
                del self._prefixes[engine_id], self._models[engine_id]
        return tuple(engines)

    def _with_shard(self, process: Process) -> Process:
        template = process.info.get("shard_url")
        if not isinstance(template, str) or not template:
            return process
        url = self._shards.url_of(template, process.rank)
        return dataclasses.replace(process, shard=url) if url else process

    def _ask(self, rule: Rule, snapshot: Snapshot) -> Sequence[ShardQuestion]:
        try:
            return tuple(rule.questions(snapshot))
        except Exception:  # its verdict will say so
            logger.exception("rule %s failed to ask", rule.name)
            return ()


def judge(rule: Rule, snapshot: Snapshot) -> Verdict:
    """One rule's verdict; its own fault is an abstention, and costs the others nothing."""
    try:
        return rule(snapshot)
    except Exception as error:
        logger.exception("rule %s failed", rule.name)
        return Verdict(
            rule.name,
            abstained=f"the rule failed: {type(error).__name__}: {error}",
            reason=reasons.RULE_FAILED,
        )


def _kept(snapshot: Snapshot) -> Snapshot:
    """A picture as later ones keep it: small, since there are several."""
    return dataclasses.replace(
        snapshot,
        engines=tuple(
            dataclasses.replace(
                engine,
                groups=(),
                model=EngineModel(),
                processes=tuple(dataclasses.replace(p, operations=()) for p in engine.processes),
            )
            for engine in snapshot.engines
        ),
        unseen=(),
        earlier=(),
        logs=(),
    )


class FindingMemory:
    """Keeps when each finding began, beyond what the records on the pages still show."""

    def __init__(self, known: Iterable[Finding] = (), now_seconds: float = 0.0) -> None:
        self._began = {  # began, last seen
            _identity(f): (now_seconds - f.since_seconds, now_seconds) for f in known
        }

    def date(self, findings: Iterable[Finding], now_seconds: float) -> list[Finding]:
        """The findings with `since_seconds` from the earliest onset known for each."""
        dated = []
        for finding in findings:
            key = _identity(finding)
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


def _identity(finding: Finding) -> tuple[object, ...]:
    return finding.id, finding.engine_id, finding.rank, finding.shard


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


def _other_shards(engines: Iterable[Engine]) -> list[Unseen]:
    """Ranks whose pages name a shard that is not among those asked: another address, another
    number of shards, or another name for the same one, which cannot be told apart."""
    unseen = []
    for engine in engines:
        for rank, worker in engine.workers().items():
            template = worker.info.get("shard_url")
            if worker.shard or not isinstance(template, str) or not template:
                continue
            url = without_credentials(template).replace("{rank}", str(rank))
            unseen.append(
                Unseen(
                    f"engine {engine.engine_id} rank {rank}",
                    reasons.OTHER_SHARD,
                    f"engine {engine.engine_id}: rank {rank} keeps its chunks at {plain(url)}, "
                    "which is not among the --valkey URLs",
                    "give the shards as the engine's configuration names them",
                )
            )
    return unseen


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
        dropped = sum(worker.counters.get("ring_drops", 0) for worker in workers.values())
        if dropped:
            unseen.append(
                Unseen(
                    name,
                    reasons.UNJOINED,
                    f"{name}: {dropped} collectives are not on record: more process groups, or "
                    "more under way, than a page holds",
                    "what the ranks wait for there cannot be told; restart the engine",
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
