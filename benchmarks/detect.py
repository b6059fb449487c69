"""`make bench-detect`: is each incident's cause named first, at the right place, and how soon?

Over a pairwise cover of incident, seed, W, loading, LMCache and engine. Each cell is a run with a
result file of its own: what was cut short goes on where it was, `--shard 2/4` takes every fourth
cell on another machine, and what was right in time is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

from benchmarks.report import RESULTS
from lab.incidents import INCIDENTS
from tests.lab.incident_cells import NAMED_WITHIN_SECONDS, SHARD_FAULTS, Answer, Cell, run_cell

FOLDER: Final = RESULTS / "detect"
MOST_CELLS: Final = 80
SEEDS: Final = (0, 1, 2)
RANKS: Final = (2, 4)
VERSIONS: Final = ("0.5.5", "0.5.6")
# Skews of work need minutes of traffic to be told: the lab's own tests have them.
SLOW: Final = frozenset(("rank0-store", "slow-rank"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell's answer, and its place in the cover."""

    name: str
    answer: Answer

    @property
    def verdict(self) -> str:
        if not self.answer.is_right:
            return "wrong"
        return "late" if self.answer.is_late else "right"


def cells() -> list[Cell]:
    """The cover: any two values of any two of the columns stand together in some cell."""
    return cover(candidates())


def candidates() -> list[Cell]:
    """All cells that are possible at all, in a fixed order."""
    found = []
    for name, seed, ranks, is_async, version in product(
        sorted(set(INCIDENTS) - SLOW), SEEDS, RANKS, (False, True), VERSIONS
    ):
        incident = INCIDENTS[name]
        if is_async and not incident.goes_with_async:
            continue
        if name not in SHARD_FAULTS:
            found.append(Cell(name, ranks, is_async, seed, version))
        else:
            found.append(Cell(name, ranks, is_async, seed, version, "sharded"))
    return found


def cover(possible: Sequence[Cell]) -> list[Cell]:
    """Greedy: the cell that brings most pairs not yet covered, the first of equals."""
    wanted = set().union(*map(_pairs, possible)) if possible else set()
    chosen: list[Cell] = []
    left = list(possible)
    while wanted:
        best = max(left, key=lambda cell: len(_pairs(cell) & wanted))
        chosen.append(best)
        left.remove(best)
        wanted -= _pairs(best)
    return sorted(chosen, key=str)


def _pairs(cell: Cell) -> set[tuple[tuple[str, object], ...]]:
    columns = (
        ("incident", cell.incident),
        ("seed", cell.seed),
        ("ranks", cell.ranks),
        ("async", cell.is_async),
        ("version", cell.version),
        ("engine", cell.engine),
    )
    return set(combinations(columns, 2))


def name_of(cell: Cell) -> str:
    """The name of its result file."""
    loading = "async" if cell.is_async else "sync"
    return f"{cell.incident}-{cell.engine}-w{cell.ranks}-{loading}-seed{cell.seed}-{cell.version}"


def load(folder: Path, chosen: Iterable[Cell]) -> dict[Cell, Outcome]:
    """The results that are there already."""
    found = {}
    for cell in chosen:
        path = folder / f"{name_of(cell)}.json"
        try:
            row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found[cell] = Outcome(name_of(cell), Answer(**{**row, "cell": cell}))
        except (OSError, ValueError, TypeError):
            continue
    return found


def table(outcomes: Iterable[Outcome]) -> str:
    """The confusion matrix: what happened, by what was named first."""
    rows: dict[str, Counter[str]] = {}
    late: Counter[str] = Counter()
    for outcome in outcomes:
        answer = outcome.answer
        told = answer.found[0].split(" ")[0] if answer.found else "nothing"
        if told == answer.expected.split(" ")[0] and not answer.is_right:
            told += " (elsewhere)"
        rows.setdefault(answer.cell.incident, Counter())[told] += 1
        late[answer.cell.incident] += outcome.verdict == "late"
    names = sorted({told for counts in rows.values() for told in counts})
    width = max((len(name) for name in rows), default=8)
    lines = [
        f"{incident:<{width}}  "
        + ", ".join(f"{name} {rows[incident][name]}" for name in names if rows[incident][name])
        + (f"; {late[incident]} late" if late[incident] else "")
        for incident in sorted(rows)
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-detect", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th cell (1/1)")
    parser.add_argument("--only", metavar="INCIDENT", help="cells of this incident alone")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--table", action="store_true", help="print what is there and end")
    args = parser.parse_args(arguments)
    index, count = _shard(parser, args.shard)
    chosen = [c for c in cells()[index - 1 :: count] if args.only in (None, c.incident)]
    if args.list:
        print("\n".join(map(str, chosen)))
        return 0
    outcomes = load(FOLDER, chosen)
    if not args.table:
        FOLDER.mkdir(parents=True, exist_ok=True)
        _run([c for c in chosen if c not in outcomes or outcomes[c].verdict != "right"], outcomes)
    counts = Counter(outcome.verdict for outcome in outcomes.values())
    print(table(outcomes.values()))
    print(
        f"{len(chosen)} cells: {counts['right']} right within {NAMED_WITHIN_SECONDS:g} s, "
        f"{counts['late']} late, {counts['wrong']} wrong, {len(chosen) - len(outcomes)} not run"
    )
    return 0 if counts["right"] == len(chosen) else 1


def _run(todo: Sequence[Cell], outcomes: dict[Cell, Outcome]) -> None:
    for number, cell in enumerate(todo, start=1):
        answer = run_cell(cell)
        outcomes[cell] = Outcome(name_of(cell), answer)
        path = FOLDER / f"{name_of(cell)}.json"
        path.write_text(json.dumps(answer.as_json(), indent=1) + "\n", encoding="utf-8")
        print(f"{number}/{len(todo)} {answer.line()}", flush=True)


def _shard(parser: argparse.ArgumentParser, text: str) -> tuple[int, int]:
    first, _, last = text.partition("/")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        parser.error(f"--shard {text!r}: write it like 2/4")
    return int(first), int(last)


if __name__ == "__main__":
    sys.exit(main())
