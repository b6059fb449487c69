"""Stacks and logs of real vLLM: found by title and by page, its first fault named by its log."""

from __future__ import annotations

import json
import re
from pathlib import Path

from runbooks.cli import exit_codes
from tests.runbooks.command_line import stallscope
from tests.vllm.server import CONNECTOR, prompt, serve
from tests.vllm.test_pcp import BASE, PCP, PROMPT_TOKENS, RANKS


def test_stock_pcp_seen_from_outside(mla: Path, shards, tmp_path: Path) -> None:
    """Under stock LMCache a hit fails: the KV is broadcast over a group of one."""
    environment = {
        **BASE,
        "LMCACHE_REMOTE_URL": shards.first_url(),
        "LMCACHE_EXTRA_CONFIG": json.dumps({"save_chunk_meta": False}),
        "STALLSCOPE_PATCHES": "none",
    }
    with serve(mla, tmp_path / "stock", CONNECTOR, environment, *PCP) as server:
        of_pages = json.loads(stallscope("stacks", "--from", server.pages, "--json").out)
        by_name = json.loads(stallscope("stacks", "--json").out)
        asked = prompt(PROMPT_TOKENS, 1)
        assert [server.ask(asked).status for _ in range(2)] == [200, 500]
        run = stallscope("diagnose", "--logs", server.log, "--json")

    assert of_pages["unseen"] == []
    ranks = {p["pid"]: p["rank"] for p in of_pages["processes"]}
    assert sorted(map(str, ranks.values())) == [*map(str, range(RANKS)), "None"]
    titled = {p["pid"]: p for p in by_name["processes"] if p["pid"] in ranks}
    assert titled.keys() == ranks.keys()
    labels = sorted(p["label"].partition(" ")[0] for p in titled.values())
    assert labels == ["EngineCore", *(f"Worker_PCP{rank}" for rank in range(RANKS))]
    assert {pid: p["rank"] for pid, p in titled.items()} == ranks
    inside = [f["function"] for g in of_pages["groups"] for f in g["frames"]]
    assert any(re.search(r"worker_busy_loop$", name) for name in inside)

    told = json.loads(run.out)
    assert run.code == exit_codes.CRITICAL
    assert "wrong-collective-group" in {f["id"] for f in told["findings"]}
    kinds = {count["kind"] for count in told["logs"]}
    assert {"wrong_group", "load_failed", "requests_failed"} <= kinds
    [failed] = [count for count in told["logs"] if count["kind"] == "requests_failed"]
    assert failed["process"] == "EngineCore" and failed["pid"] in ranks
