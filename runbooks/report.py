"""What one evaluation says to a person or a script: findings, what was unseen, the exit code."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from detectors.merge import merged
from exporters import reasons
from exporters.readers.shard_url import parse
from exporters.snapshot import Evaluation, Finding, Snapshot, Unseen, Verdict
from runbooks.cli import exit_codes
from runbooks.library import load_page, page_names

SCHEMA: Final = 1
STALL_SECONDS: Final = 5.0  # no step of a healthy engine holds a collective open for so long
_MENDS: Final = {reasons.TOO_FEW: "look for longer with stallscope diagnose --watch"}
_EXIT_CODES: Final = {"critical": exit_codes.CRITICAL, "warning": exit_codes.WARNING}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked to look at: a folder of pages, shards, logs, or all of them."""

    pages_dir: Path | None
    valkey_urls: tuple[str, ...]
    logs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """A finding with where to read on: its runbook page ("" where none) and the next command.

    `values` are what is known of the `$NAME`s of the pages: PID, SHARD_HOST and others;
    `symptoms` the findings that follow from this one.
    """

    finding: Finding
    runbook: str
    next_command: str
    values: Mapping[str, str] = field(default_factory=dict)
    symptoms: tuple[Item, ...] = ()


@dataclass(frozen=True, slots=True)
class Stall:
    """A collective that has been open for long: a fact worth telling, whatever the rules say."""

    engine_id: str
    op: str
    open_seconds: float
    missing_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """One evaluation, ready to be written. `unseen` holds abstaining rules too."""

    snapshot: Snapshot
    items: tuple[Item, ...]
    unseen: tuple[Unseen, ...]
    rules: tuple[str, ...]
    asked: Asked
    stalls: tuple[Stall, ...]

    @property
    def exit_code(self) -> int:
        """The worst finding's code; without one, whether all that was asked for was seen."""
        found = [i.finding for item in self.items for i in (item, *item.symptoms)]
        codes = [_EXIT_CODES.get(finding.severity, exit_codes.OK) for finding in found]
        worst = max(codes, default=exit_codes.OK)
        return worst or (exit_codes.UNSEEN if self.unseen else exit_codes.OK)

    def as_json(self) -> dict[str, object]:
        """The documented schema: plain JSON types only, no NaN or infinity."""
        return {
            "schema": SCHEMA,
            "unix_seconds": round(self.snapshot.unix_seconds, 3),
            "findings": [_finding_json(item) for item in self.items],
            "unseen": [asdict(unseen) for unseen in self.unseen],
            "open_collectives": [asdict(stall) for stall in self.stalls],
            "logs": [asdict(count) for count in self.snapshot.logs],
            "seen": {
                "engines": len(self.snapshot.engines) if self.asked.pages_dir is not None else 0,
                "ranks": sum(len(engine.workers()) for engine in self.snapshot.engines),
                "shards": sum(shard.up for shard in self.snapshot.shards),
                "rules": list(self.rules),
                "patches": _patches(self.snapshot),
            },
        }


def make_report(evaluation: Evaluation, asked: Asked) -> Report:
    """Join an evaluation with the runbook pages and with what was asked for."""
    snapshot = evaluation.snapshot
    abstained = [verdict for verdict in evaluation.verdicts if verdict.abstained]
    unseen = list(snapshot.unseen)
    if snapshot.engines:  # without any engine, the folder's own line says it all
        # What nobody asked to see is not unseen.
        unseen += [
            _abstention(v)
            for v in abstained
            if v.reason == reasons.RULE_FAILED
            or (asked.pages_dir is not None and v.reason != reasons.NOT_ASKED)
        ]
    elif asked.pages_dir is not None and not unseen:  # its pages went away while we looked
        folder = str(asked.pages_dir)
        unseen.append(Unseen(folder, reasons.EMPTY_FOLDER, f"no page to read in {folder}"))
    names = {v.rule for v in abstained}
    if asked.pages_dir is None:  # of a log alone, a rule decides only what it finds
        names |= {v.rule for v in evaluation.verdicts if not v.findings}
    return Report(
        snapshot=snapshot,
        items=tuple(
            dataclasses.replace(
                _item(one.cause, snapshot, asked),
                symptoms=tuple(_item(finding, snapshot, asked) for finding in one.symptoms),
            )
            for one in merged(evaluation.findings)
        ),
        unseen=tuple(unseen),
        rules=tuple(v.rule for v in evaluation.verdicts if v.rule not in names),
        asked=asked,
        stalls=tuple(_stalls(snapshot)),
    )


def _abstention(verdict: Verdict) -> Unseen:
    detail = f"{verdict.rule} cannot be decided: {verdict.abstained}"
    return Unseen(verdict.rule, verdict.reason, detail, _MENDS.get(verdict.reason, ""))


def _stalls(snapshot: Snapshot) -> Iterator[Stall]:
    for engine in snapshot.engines:
        for group in engine.groups:
            for item in group.open:
                if item.missing_ranks and item.open_seconds >= STALL_SECONDS:
                    yield Stall(engine.engine_id, item.op, item.open_seconds, item.missing_ranks)


def _item(finding: Finding, snapshot: Snapshot, asked: Asked) -> Item:
    values = _values(finding, snapshot, asked)
    if finding.id not in page_names():
        return Item(finding, "", "", values)
    step = load_page(finding.id).first_step(values)
    return Item(finding, finding.id, step or f"stallscope runbook {finding.id}", values)


def _values(finding: Finding, snapshot: Snapshot, asked: Asked) -> Mapping[str, str]:
    """What is known of the `$NAME`s of the runbook pages."""
    values: dict[str, str] = {}
    if asked.pages_dir is not None:
        values["STALLSCOPE_DIR"] = shlex.quote(str(asked.pages_dir))
    if finding.shard is not None:
        server = parse(finding.shard)
        if server.host:
            values["SHARD_HOST"] = shlex.quote(server.host)
            values["SHARD_PORT"] = str(server.port)
    if finding.rank is not None:
        values["RANK"] = str(finding.rank)
        for engine in snapshot.engines:
            worker = engine.workers().get(finding.rank)
            if worker is not None and engine.engine_id == finding.engine_id:
                values["PID"] = str(worker.pid)
    return values


def _finding_json(item: Item) -> dict[str, object]:
    finding = item.finding
    return {
        "id": finding.id,
        "severity": finding.severity,
        "rank": finding.rank,
        "shard": finding.shard,
        "engine": finding.engine_id,
        "since_seconds": _number(finding.since_seconds),
        "summary": finding.summary,
        "evidence": [
            {**asdict(e), "value": _number(e.value), "limit": _number(e.limit)}
            for e in finding.evidence
        ],
        "confidence": _number(finding.confidence),
        "cause": finding.cause,
        "runbook": item.runbook,
        "next": item.next_command,
        "values": dict(item.values),
        "symptoms": [_finding_json(symptom) for symptom in item.symptoms],
    }


def _patches(snapshot: Snapshot) -> dict[str, list[str]]:
    """What became of each patch, in any process of any engine."""
    states: dict[str, set[str]] = {}
    for engine in snapshot.engines:
        for process in engine.processes:
            listed = process.info.get("patches")
            for name, state in listed.items() if isinstance(listed, dict) else ():
                word = str(state).partition(":")[0].replace(" ", "_")
                states.setdefault(str(name), set()).add(word)
    return {name: sorted(found) for name, found in sorted(states.items())}


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None
