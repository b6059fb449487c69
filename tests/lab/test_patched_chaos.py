"""The patched engine under the faults that stop, corrupt or starve a stock one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lab.settings import LOOKUP_TIMEOUT_SECONDS
from tests.lab.patched_runs import Deletions, Run, chunk_names, chunks, patched_run, until
from tests.lab.soak import results

pytest.importorskip("torch")
pytest.importorskip("lmcache")

VERSIONS = ("0.5.5", "0.5.6")
BACK_SECONDS = 2.0
BLOCKING_TIMEOUT_SECONDS = 10.0  # LMCache's own
STALL_SECONDS = 2.0
MORE_DESCRIPTORS, MORE_THREADS, MORE_BYTES = 8, 4, 48 << 20
COMMAND = "python -m pytest -q -m soak tests/lab/test_patched_chaos.py"
FAULTS = ("killed", "emptied", "frozen", "cut", "full")


def is_right(
    report: dict[str, Any], rows: list[dict[str, Any]], stall_seconds: float = STALL_SECONDS
) -> None:
    """No wrong byte on any rank, no lookup timed out, no step stalled, nothing of ours failed."""
    assert sum(row["wrong_chunks"] for row in rows) == 0
    assert report["stock_faults"] == {
        "lost_completions": 0,
        "lookup_timeouts": 0,
        "stalled_steps": 0,
    }
    assert max(row["load_seconds"] for row in rows) < stall_seconds
    assert report["requests"]["source"]["l2_tokens"] > 0


def missing_key(tmp_path: Path, version: str, *more: str) -> None:
    arguments = ("--incident", "missing-key", "--incident-after", "4", "--ranks", "4")
    arguments += ("--seconds", "10", "--rate", "3")
    with patched_run(tmp_path, *arguments, "--lmcache", version, *more) as run:
        deletions = Deletions(run.port)
        report, rows = run.result()
    is_right(report, rows)
    assert report["incident_seconds"] is not None
    until(lambda: bool(deletions.keys), 5, "the server told of no DEL")
    (deleted,) = deletions.keys
    struck = int(deleted.split("@")[2])
    names = chunk_names(rows, 4, struck)
    index = {name: keys.index(deleted) for name, keys in names.items() if deleted in keys}
    if "--async" in more:
        # The ranks agree on the prefix before the load: all of them bring that, and it is right.
        assert all(row["bytes_equal"] for row in rows)
        assert any(chunks(row["hit_tokens"]) == index.get(row["request"]["id"]) for row in rows)
        assert max(row["lookup_seconds"] for row in rows) < LOOKUP_TIMEOUT_SECONDS
    else:
        # That rank brings exactly the chunks before it, the others all that was found; so does
        # a second request that was looked up before the key went, and loaded after.
        struck_rows = [row for row in rows if not row["bytes_equal"]]
        assert struck_rows
        for row in struck_rows:
            assert chunks(row["loaded_tokens"][struck]) == index[row["request"]["id"]]
            others = [n for rank, n in enumerate(row["loaded_tokens"]) if rank != struck]
            assert set(others) == {row["hit_tokens"]}
            assert row["hit_tokens"] > row["loaded_tokens"][struck]


@pytest.mark.parametrize("loading", ["sync", pytest.param("async", marks=pytest.mark.soak)])
def test_a_missing_key_costs_the_chunks_behind_it(tmp_path: Path, loading: str) -> None:
    missing_key(tmp_path, "0.5.5", *(("--async",) if loading == "async" else ()))


def struck_by(fault: str, run: Run, ranks: int) -> float:
    """Do it, end it, and see the ranks served again within 2 s of that: after how many seconds."""
    if fault in ("killed", "emptied"):
        command = run.kill_server()
        time.sleep(2.5 if fault == "killed" else 0.0)  # the pauses between tries have grown, or not
        return run.seconds_until_asked(run.start_server(command), ranks)
    if fault == "frozen":
        with run.frozen_server():
            time.sleep(5)
        # What it answers first are questions of connections that were given up meanwhile.
        return run.wait_for_count("load_l2_chunks")
    if fault == "cut":
        assert sum((run.cut_connections(), time.sleep(0.1))[0] for _ in range(20)) >= ranks
        return run.wait_for_count("load_l2_chunks")
    if fault == "full":
        with run.server() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1mb")
            until(lambda: "errorstat_OOM" in client.info("errorstats"), 10, "no SET got -OOM")
            time.sleep(2)
            client.config_set("maxmemory", "1gb")
    return run.seconds_until_asked(time.monotonic(), ranks)


def chaos(tmp_path: Path, fault: str, *arguments: str) -> str:
    """One run with one fault; what was measured, in words."""
    ranks = 2
    options = ("--ranks", str(ranks), "--rate", "3", *arguments)
    with patched_run(tmp_path, *options) as run:
        run.wait_for_count("load_l2_chunks", 8)
        before = run.resources()
        back_seconds = struck_by(fault, run, ranks)
        assert back_seconds < BACK_SECONDS
        run.wait_for_count("load_l2_chunks", 8)  # what was stored since comes back
        more = [
            tuple(now - then for now, then in zip(after, before[pid], strict=True))
            for pid, after in run.resources().items()
        ]
        most = [max(values) for values in zip(*more, strict=True)]
        assert most[0] <= MORE_DESCRIPTORS
        assert most[1] <= MORE_THREADS
        assert most[2] <= MORE_BYTES
        report, rows = run.result()
    is_right(report, rows, BLOCKING_TIMEOUT_SECONDS if fault == "frozen" else STALL_SECONDS)
    loaded = report["requests"]["source"]["l2_tokens"]
    return (
        f"back after {back_seconds:.2f} s, {len(rows)} requests, {loaded} tokens from L2, 0 wrong"
        f" chunks, a rank at most {most[0]:+d} descriptors, {most[1]:+d} threads,"
        f" {most[2] / 2**20:+.1f} MiB"
    )


def keep(name: str, text: str) -> None:
    """Add a line to the result file, in the place of an earlier one of that name."""
    path = results.FOLDER / "patched_chaos.json"
    lines = dict(json.loads(path.read_text())["runs"]) if path.exists() else {}
    lines[name] = text
    shown = [f"{key:<42} {value}" for key, value in sorted(lines.items())]
    results.write("patched_chaos", COMMAND, shown, {"runs": dict(sorted(lines.items()))})


def test_a_shard_killed_and_started_again_empty(tmp_path: Path) -> None:
    chaos(tmp_path, "killed", "--seconds", "18")


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("loading", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_chaos(tmp_path: Path, fault: str, loading: str, version: str) -> None:
    more = ("--async",) if loading == "async" else ()
    options = ("--seconds", "40", "--lmcache", version, "--shards", "2")
    keep(f"{version} W=2 {loading} {fault}", chaos(tmp_path, fault, *options, *more))


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("loading", ["sync", "async"])
@pytest.mark.parametrize(
    "incident", ["cut-connections", "lost-completion", "missing-key", "rank0-store", ""]
)
def test_incidents(tmp_path: Path, incident: str, loading: str, version: str) -> None:
    more = ("--async",) if loading == "async" else ()
    name = f"{version} W=4 {loading} {incident or 'healthy'}"
    if incident == "missing-key":
        missing_key(tmp_path, version, *more)
        return keep(name, "exactly the chunks before it, 0 wrong chunks, no timeout")
    if incident == "lost-completion" and more:
        pytest.skip("LMCache's asynchronous lookups submit and drain in one thread")
    arguments = ("--ranks", "4", "--seconds", "20", "--rate", "3", "--lmcache", version, *more)
    chosen = ("--incident", incident) if incident else ()
    if incident and incident != "rank0-store":
        chosen += ("--incident-after", "4")
    with patched_run(tmp_path, *arguments, *chosen) as run:
        report, rows = run.result()
    is_right(report, rows)
    if incident == "rank0-store":
        # LMCache's default for an MLA model: rank 0 stores, the others load under its names.
        assert [rank["store_bytes"] > 0 for rank in report["per_rank"]] == [True, *[False] * 3]
    else:
        assert bool(incident) == (report["incident_seconds"] is not None)
        assert report["findings"] == []
    # Cut connections are made again and the GETs asked again: every load is whole.
    assert report["bytes_equal"] is True
    slowest = max(row["lookup_seconds"] for row in rows)
    assert slowest < LOOKUP_TIMEOUT_SECONDS
    loaded = report["requests"]["source"]["l2_tokens"]
    return keep(
        name,
        f"{len(rows)} requests, {loaded} tokens from L2, every load whole and right, slowest"
        f" lookup {slowest:.2f} s",
    )
