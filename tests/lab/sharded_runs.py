"""One run of the lab on the sharded engine, and what must hold of it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.settings import CHUNK_TOKENS
from tests.lab.runs import end, leftovers, start

# An L1 of the pod that holds few prompts, whatever W: loads come from the shards soon, and often.
LEAST_TOKENS, MOST_TOKENS = 1024, 3072  # of a prompt, for each rank
POD_L1_MIB, LEAST_L1_MIB = 12, 2


@dataclass(frozen=True)
class Cell:
    """What is run."""

    ranks: int
    is_async: bool
    shards: int
    version: str
    incident: str = ""

    def arguments(self, seconds: int, rate: float) -> tuple[str, ...]:
        chosen = ("--ranks", str(self.ranks), "--shards", str(self.shards))
        prompts = ("--prompt-tokens", f"{LEAST_TOKENS * self.ranks}-{MOST_TOKENS * self.ranks}")
        l1 = ("--l1-memory", str(max(LEAST_L1_MIB, POD_L1_MIB // self.ranks)))
        incident = ("--incident", self.incident) if self.incident else ()
        loading = ("--async",) if self.is_async else ()
        length = ("--seconds", str(seconds), "--rate", str(rate))
        return (*prompts, *l1, *chosen, *incident, *loading, *length, "--lmcache", self.version)

    def __str__(self) -> str:
        loading = "async" if self.is_async else "sync"
        return (
            f"{self.version} W={self.ranks} {loading:<5} {self.shards} shards"
            f" {self.incident or 'healthy':<11}"
        )


@dataclass
class Outcome:
    """What came of it; `wrong` says in words what does not hold."""

    cell: Cell
    requests: int = 0
    hits: int = 0
    l2_tokens: int = 0
    store_shares: list[float] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    load: float = 0.0

    def line(self) -> str:
        shares = (
            "-".join(f"{share:.2f}" for share in (min(self.store_shares), max(self.store_shares)))
            if self.store_shares
            else "?"
        )
        return (
            f"{self.cell} {'WRONG' if self.wrong else 'right'}: {self.requests:3} requests,"
            f" {self.hits:3} with hits, {self.l2_tokens:6} tokens from L2, a rank's part of the"
            f" stored bytes x W {shares}, findings {', '.join(self.findings) or 'none'},"
            f" load {self.load:.1f}{': ' + '; '.join(self.wrong) if self.wrong else ''}"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def matrix() -> Iterator[Cell]:
    """W x loading x shards x LMCache, healthy; and the stock incident at each W and loading."""
    for version in ("0.5.5", "0.5.6"):
        for ranks in (2, 4, 8):
            for is_async in (False, True):
                for shards in (1, ranks):
                    yield Cell(ranks, is_async, shards, version)
    for ranks in (2, 4, 8):
        for is_async in (False, True):
            yield Cell(ranks, is_async, ranks, "0.5.5", "rank0-store")


def run_cell(cell: Cell, seconds: int, rate: float) -> Outcome:
    """Run it once and judge it; nothing may be left of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lab = start(
            folder,
            "--engine",
            "sharded",
            "--keep",
            str(folder / "kept"),
            *cell.arguments(seconds, rate),
        )
        try:
            report = lab.result()
        finally:
            end(lab)
        assert leftovers(lab) == [], cell
        rows = json.loads((folder / "kept" / "scheduler.json").read_text())["requests"]
        logs = "".join(path.read_text(errors="replace") for path in (folder / "kept").glob("*.log"))
    outcome = judge(cell, report, rows, logs)
    outcome.load = round(os.getloadavg()[0] / (os.cpu_count() or 1), 1)
    return outcome


def judge(cell: Cell, report: dict[str, Any], rows: list[dict[str, Any]], logs: str) -> Outcome:
    ranks = report["per_rank"]
    stored = [one["store_bytes"] for one in ranks]
    outcome = Outcome(
        cell,
        requests=len(rows),
        hits=sum(row["hit_tokens"] > 0 for row in rows),
        l2_tokens=report["requests"]["source"]["l2_tokens"],
        store_shares=[round(size * cell.ranks / max(sum(stored), 1), 3) for size in stored],
        findings=[f"{found['id']} rank {found['rank']}" for found in report["findings"]],
        undecided=report["unseen"],
    )
    # Two prompts differ by a chunk a rank at most, whatever their lengths.
    limit = report["stated"]["chunk_bytes"] * max(one["calls"]["store"] for one in ranks)
    faults = {name: count for name, count in report["stock_faults"].items() if count}
    for is_wrong, what in (
        (not rows, "no request was done"),
        (not outcome.hits, "nothing was found"),
        (not outcome.l2_tokens, "nothing came from the shards"),
        (any(row["wrong_chunks"] for row in rows), "wrong bytes"),
        (not all(row["bytes_equal"] for row in rows), "a rank lacks what was found"),
        (any(set(row["loaded_tokens"]) - {row["hit_tokens"]} for row in rows), "ranks differ"),
        (any(row["hit_tokens"] % CHUNK_TOKENS for row in rows), "part of a chunk was found"),
        (any(abs(size - sum(stored) / cell.ranks) > limit for size in stored), "unfair shares"),
        (bool(faults), f"faults {faults}"),
        (bool(outcome.findings), "something was found wrong"),
        ("Double" in logs, "freed or unpinned twice"),
        ("Traceback" in logs, "a traceback in the logs"),
    ):
        if is_wrong:
            outcome.wrong.append(what)
    return outcome
