"""One cell of the incidents' matrix: a lab struck by a fault, and what diagnose says of it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.incidents import INCIDENTS
from lab.settings import Settings
from tests.lab.runs import LabRun, end, leftovers, start
from tests.runbooks.command_line import stallscope

# Short prompts and an L1 that holds few of them: loads come from the shard soon, and often.
STREAM = ("--l1-memory", "6", "--prompt-tokens", "2048-6144", "--rate", "3", "--seconds", "90")
# A shard for each rank: it must hold chunks of several prompts, and the L1 must miss some.
SHARDED_STREAM = (
    *("--l1-memory", "2", "--prompt-tokens", "4096-12288"),
    *("--rate", "2", "--seconds", "90"),
)
NAMED_WITHIN_SECONDS = 5.0
# The stock client's own fault strikes some runs before the incident is told: how often to repeat.
TRIES = 4
BEGINS_WITHIN_SECONDS = 45.0
# Nobody looks sooner; an answer is timed from the onset all the same.
LOOKED_AFTER_SECONDS = 1.0
# Beyond what an answer may take: then none came.
GIVEN_UP_SECONDS = 25.0
# Faults of a shard that the sharded engine's ranks lose something by.
SHARD_FAULTS = ("busy-shard", "restarted-shard", "lost-keys")
# One that is there from the start, and is in the pages at once.
STARTING_FAULTS = ("two-seeds",)
NEW_FAULTS = (
    "lost-completion",
    "missing-key",
    "evicted-keys",
    "cut-connections",
    "dead-shard",
    "frozen-shard",
)


@dataclass(frozen=True)
class Cell:
    """What is run; `arguments` are the lab's."""

    incident: str
    ranks: int
    is_async: bool
    seed: int
    version: str
    engine: str = "stock"

    @property
    def shards(self) -> int:
        """One a rank on the sharded engine."""
        return self.ranks if self.engine == "sharded" else 2 if self.ranks > 2 else 1

    @property
    def arguments(self) -> tuple[str, ...]:
        chosen = ("--incident", self.incident, "--ranks", str(self.ranks), "--seed", str(self.seed))
        engine = ("--engine", self.engine, "--shards", str(self.shards))
        loading = ("--async",) if self.is_async else ()
        stream = SHARDED_STREAM if self.engine == "sharded" else STREAM
        return (*stream, *chosen, "--lmcache", self.version, *engine, *loading)

    def __str__(self) -> str:
        loading = "async" if self.is_async else "sync"
        engine = "" if self.engine == "stock" else f" {self.engine}"
        return (
            f"{self.version} W={self.ranks} {loading:<5} seed {self.seed} {self.incident:<15}"
            f"{engine}"
        )


@dataclass
class Answer:
    """What came of it. `seconds` is from when the fault could be told at all to diagnose's answer;
    `struck` how many runs were made again because the stock client's own fault came first; `load`
    how many processes wanted a CPU meanwhile, for each there is."""

    cell: Cell
    expected: str
    found: list[str]
    seconds: float
    struck: int
    is_right: bool
    load: float = 0.0

    @property
    def is_late(self) -> bool:
        return self.seconds > NAMED_WITHIN_SECONDS

    def line(self) -> str:
        verdict = "WRONG" if not self.is_right else "late " if self.is_late else "right"
        repeated = f", repeated {self.struck}" if self.struck else ""
        return (
            f"{self.cell} {verdict} after {self.seconds:4.1f} s, load {self.load:3.1f}{repeated}: "
            f"{', '.join(self.found) or 'nothing'} (must be {self.expected})"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def cells(
    ranks: tuple[int, ...], seeds: tuple[int, ...], versions: tuple[str, ...]
) -> Iterator[Cell]:
    """Every incident, synchronous and, where it applies, asynchronous."""
    for version in versions:
        for count in ranks:
            for is_async in (False, True):
                for name in NEW_FAULTS:
                    if is_async and not INCIDENTS[name].goes_with_async:
                        continue
                    for seed in seeds:
                        yield Cell(name, count, is_async, seed, version)


def run_cell(cell: Cell, folder: Path | None = None) -> Answer:
    """Run it until the stock client's own fault leaves it alone, at most TRIES times."""
    struck = 0
    while True:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            lab = start(Path(temporary), *cell.arguments)
            try:
                answer = _ask(cell, lab, struck)
            finally:
                end(lab)
            assert leftovers(lab) == [], cell
        if answer is not None or struck + 1 == TRIES:
            break
        struck += 1
    if answer is None:
        return Answer(cell, _expected(cell), ["struck by the stock fault"], 0.0, TRIES, False)
    return answer


def _ask(cell: Cell, lab: LabRun, struck: int) -> Answer | None:
    """Ask diagnose until it answers; None where the stock client lost a completion by itself."""
    watch = lab.wait_for(r"stallscope diagnose (--from \S+(?: --valkey \S+)+)").group(1).split()
    incident = INCIDENTS[cell.incident]
    if not _wait_for_onset(cell, lab):
        return None
    onset = time.monotonic()
    urls = [word for word in watch if word.startswith("redis://")]
    expected = _expected(cell)
    decidable = onset + incident.decidable_seconds
    time.sleep(max(incident.decidable_seconds, LOOKED_AFTER_SECONDS))
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < decidable + GIVEN_UP_SECONDS:
        found = json.loads(stallscope("diagnose", "--json", *watch).out)["findings"]
        seconds = time.monotonic() - decidable
    if _is_struck(lab):  # told late
        return None
    named = [_place(f, urls) for f in found]
    is_right = bool(found) and named[0].startswith(expected)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return Answer(cell, expected, named, round(seconds, 2), struck, is_right, round(load, 1))


def _wait_for_onset(cell: Cell, lab: LabRun) -> bool:
    deadline = time.monotonic() + BEGINS_WITHIN_SECONDS
    while not re.search(rf"{cell.incident} began after", lab.log.read_text()):
        assert lab.process.poll() is None, lab.log.read_text()
        if _is_struck(lab):
            return False
        assert time.monotonic() < deadline, f"{cell}: no onset: {lab.log.read_text()}"
        time.sleep(0.05)
    return True


def _is_struck(lab: LabRun) -> bool:
    """Whether the stock client lost a completion by itself before the incident began. One that it
    loses later (on a dead connection every call fails at once, and many are) is no excuse."""
    text = lab.log.read_text()
    losses = re.findall(r"lost a completion by itself on rank \d+ after ([\d.]+) s", text)
    began = re.search(r" began after ([\d.]+) s", text)
    return any(began is None or float(at) < float(began.group(1)) for at in losses)


def _expected(cell: Cell) -> str:
    """The finding, its cause and its place, as `_place` writes them."""
    incident = INCIDENTS[cell.incident]
    settings = Settings(ranks=cell.ranks, seed=cell.seed, shards=cell.shards)
    cause = f" ({incident.cause})" if incident.cause else ""
    rank = incident.rank(settings)
    # A rank's shard stands with it; a shard that is the place itself may have any rank with it.
    place = f"{incident.finding}{cause}"
    place += f" at shard {incident.shard(settings)}" if incident.has_shard else ""
    return place + ("" if rank is None else f", rank {rank}")


def _place(finding: dict[str, Any], urls: list[str]) -> str:
    cause = f" ({finding['cause']})" if finding.get("cause") else ""
    rank = "" if finding["rank"] is None else f", rank {finding['rank']}"
    shard = f" at shard {urls.index(finding['shard'])}" if finding["shard"] else ""
    return f"{finding['id']}{cause}{shard}{rank}"
