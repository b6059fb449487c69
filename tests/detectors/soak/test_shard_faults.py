"""Real faults of real shards, each named first at its place; and health, in which none is named."""

from __future__ import annotations

import pytest

from tests.lab.incident_cells import NAMED_WITHIN_SECONDS, TRIES, Cell, run_cell
from tests.lab.runs import run

pytest.importorskip("torch")
pytest.importorskip("lmcache")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
RULES = ("shard-saturated", "shard-skew", "cold-shard", "orphaned-chunks", "key-namespace-split")
CELLS = (
    Cell("busy-shard", 4, False, 1, "0.5.5"),  # two ranks a shard
    Cell("busy-shard", 4, True, 0, "0.5.6", "sharded"),
    Cell("restarted-shard", 4, False, 1, "0.5.5", "sharded"),
    Cell("restarted-shard", 2, False, 2, "0.5.5", "sharded"),
    Cell("lost-keys", 4, False, 0, "0.5.5", "sharded"),
    Cell("lost-keys", 2, True, 1, "0.5.6", "sharded"),
    Cell("two-seeds", 4, False, 2, "0.5.6"),
    Cell("two-seeds", 2, True, 0, "0.5.5", "sharded"),
)
_STREAM = ("--l1-memory", "4", "--prompt-tokens", "2048-8192", "--rate", "2", "--seconds", "45")
_SHARDED = ("--engine", "sharded", "--ranks", "2", "--shards", "2")
# Longer than any of these rules must see; the rest of a run may be undecided.
_UNDECIDED_SHARE = 0.2
_NEEDS_LOOKUPS = "orphaned-chunks"  # ten of them: at this rate some seconds


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_it_is_named_first_and_at_its_place(cell, capsys):
    answer = run_cell(cell)
    with capsys.disabled():
        print(f"\n{answer.line()}")
    if answer.struck == TRIES:
        pytest.skip(f"the stock client lost a completion in {TRIES} runs running (upstream #5547)")
    assert answer.is_right, answer.line()
    assert answer.seconds <= NAMED_WITHIN_SECONDS * max(1.0, answer.load), answer.line()
    # A fault of one shard says nothing of another.
    place = " ".join(answer.expected.split(" ")[-3:]).split(",")[0]
    elsewhere = [f for f in answer.found if f.split(" ")[0] in RULES and "at shard" in f]
    assert all(f" {place}" in f for f in elsewhere if "at shard" in place), answer.line()


@pytest.mark.parametrize("engine", ["stock", "patched", "sharded"])
def test_health_is_silent_and_decided(tmp_path, engine, capsys):
    shards = _SHARDED if engine == "sharded" else ("--engine", engine, "--ranks", "2")
    result = run(tmp_path, *_STREAM, *shards)
    named = [(row["id"], row["rank"]) for row in result["named_after_seconds"]]
    with capsys.disabled():
        print(f"\n{engine}: named {named}; rules {[(n, result['rules'][n]) for n in RULES]}")
    assert [name for name, _ in named if name in RULES] == []
    for name in RULES:
        told = result["rules"][name]
        is_late = name == _NEEDS_LOOKUPS and engine == "sharded"
        limit = 0.5 if is_late else 1 - _UNDECIDED_SHARE
        assert told["evaluable_ticks"] >= limit * told["ticks"], (name, told)


def test_a_restart_is_a_cold_shard_and_nothing_worse(tmp_path, capsys):
    result = run(tmp_path, *_STREAM, *_SHARDED, "--incident", "restarted-shard")
    rank = result["expected"]["rank"]
    shard = result["expected"]["shard"]
    named = [(row["id"], row["rank"]) for row in result["named_after_seconds"]]
    with capsys.disabled():
        print(f"\nrestarted {shard} ({rank}): named {named}")
    assert {name for name, _ in named if name in RULES} <= {"cold-shard", "orphaned-chunks"}
    assert "cold-shard" in {name for name, _ in named}
    at = {f["shard"] for f in result["findings"] if f["id"] in RULES}
    assert at <= {shard}
    assert [f["id"] for f in result["findings"] if f["severity"] == "critical"] == []
