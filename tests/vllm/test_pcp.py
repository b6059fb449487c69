"""The sharded store in real vLLM under prefill context parallelism, configured as in the post."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from exporters.readers.pages import PageFolder
from patched_engine.hooks.work import owned_chunks
from tests.vllm.server import CONNECTOR, MULTI, Answer, Server, prompt, serve

RANKS = 2
CHUNK_TOKENS = 64
PROMPT_TOKENS = 700
CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
PCP = (
    *("--load-format", "auto", "--dtype", "bfloat16"),
    *("--prefill-context-parallel-size", str(RANKS)),
)
BASE = {
    "LMCACHE_CHUNK_SIZE": str(CHUNK_TOKENS),
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5",
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
}
# A cold answer and another one of the same prompt differ by up to 0.1 with this model.
CLOSE = 0.2


def as_in_the_post(url: str) -> dict[str, str]:
    return {
        **BASE,
        "LMCACHE_REMOTE_URL": url,
        "LMCACHE_EXTRA_CONFIG": json.dumps({"pcp_shard_store": True, "resp_num_threads": 4}),
        "LMCACHE_ENABLE_ASYNC_LOADING": "True",
    }


def pages(server: Server) -> list[object]:
    """The pages, read while the engine lives."""
    folder = PageFolder(server.pages)
    try:
        return list(folder.read(time.monotonic_ns()).pages)
    finally:
        folder.close()


def workers(server: Server) -> dict[int, object]:
    """Each rank's page."""
    return {s.process.rank: s for s in pages(server) if "worker" in s.process.roles}


def check_requests(server: Server, asked: int, from_cache: int) -> None:
    """vLLM's scheduler has had so many requests, of which so many got most of it from LMCache."""
    (page,) = (s.process for s in pages(server) if "scheduler" in s.process.roles)
    counters = page.counters
    assert counters["requests_admitted"] == counters["requests_finished"] == asked, counters
    assert counters["requests_hit_external"] == from_cache, counters
    assert counters["requests_hit_none"] == asked - from_cache, counters
    assert counters["prompt_tokens"] == asked * PROMPT_TOKENS
    assert counters["prompt_external_cached_tokens"] == from_cache * CHUNKS * CHUNK_TOKENS
    computed = counters["prompt_tokens"] - counters["prompt_external_cached_tokens"]
    assert counters["scheduled_prefill_tokens"] == computed
    firsts = sum(n for name, n in counters.items() if name.startswith("ttft_0_bucket"))
    assert firsts == asked
    assert 0 < counters["ttft_0_nanoseconds"] < asked * 300e9
    assert page.gauges["requests_running"] == page.gauges["requests_waiting"] == 0
    assert "prefill_scheduled" in page.marks


def is_close(one: Answer, other: Answer) -> bool:
    """Most of the likeliest first tokens are the same, and as likely. (Of what is generated after
    them, two cold runs differ: this model's tokens are nearly alike.)"""
    same = one.first.keys() & other.first.keys()
    return len(same) >= 3 and all(abs(one.first[t] - other.first[t]) <= CLOSE for t in same)


def check_stored(server: Server) -> None:
    """Both ranks have stored their own chunks, and vLLM's own gathers are in both rings."""
    pages = workers(server)
    assert set(pages) == set(range(RANKS))
    for rank, sample in pages.items():
        counters = sample.process.counters
        assert counters["store_chunks"] == owned_chunks(0, CHUNKS, rank, RANKS)
        assert counters["store_bytes"] > 0
        gathers = [entry for entries in sample.entries.values() for entry in entries]
        assert gathers, f"rank {rank} has recorded no collective"
        assert "applied" in dict(sample.process.info["patches"]).values()


def check_loaded(server: Server, tier: str) -> None:
    for rank, sample in workers(server).items():
        counters = sample.process.counters
        assert counters[f"load_{tier}_chunks"] == owned_chunks(0, CHUNKS, rank, RANKS), counters
        assert counters["load_tokens"] == CHUNKS * CHUNK_TOKENS
        assert counters["lookup_timeouts"] == 0
    assert server.lines("is counted") == []  # no fault of ours


def test_sharded(mla: Path, shards, tmp_path: Path) -> None:
    """Cold, from L1, from L2 after a restart, and cold again; directly and in MultiConnector."""
    first, second = prompt(PROMPT_TOKENS, 1), prompt(PROMPT_TOKENS, 2)
    environment = as_in_the_post(shards.url)
    with serve(mla, tmp_path / "a", CONNECTOR, environment, *PCP) as server:
        cold = server.ask(first)
        check_stored(server)
        from_l1 = server.ask(first)
        check_loaded(server, "l1")
        check_requests(server, 2, 1)
        assert server.trouble() == []
    assert shards.chunks() == [owned_chunks(0, CHUNKS, rank, RANKS) for rank in range(RANKS)]
    with serve(mla, tmp_path / "b", MULTI, environment, *PCP) as server:
        from_l2 = server.ask(first)
        check_loaded(server, "l2")
        multi_cold, multi_l1 = server.ask(second), server.ask(second)
        check_requests(server, 3, 2)
        assert server.trouble() == []
    with serve(mla, tmp_path / "c", CONNECTOR, environment, *PCP) as server:
        multi_l2 = server.ask(second)
        check_loaded(server, "l2")
        shards.empty()
        control = server.ask(first)
        assert server.trouble() == []
    answers = [cold, from_l1, from_l2, control, multi_cold, multi_l1, multi_l2]
    assert [answer.status for answer in answers] == [200] * len(answers)
    for answer in (from_l1, from_l2, control):
        assert is_close(answer, cold)
    for answer in (multi_l1, multi_l2):
        assert is_close(answer, multi_cold)
    assert not is_close(cold, multi_cold)  # or the comparison says nothing


def test_stock_fails_the_same(mla: Path, shards, tmp_path: Path) -> None:
    """Upstream broadcasts loaded KV over the TP group, which has one member: a hit is HTTP 500."""
    asked = prompt(PROMPT_TOKENS, 1)
    environment = {
        **BASE,
        "LMCACHE_REMOTE_URL": shards.first_url(),
        "LMCACHE_EXTRA_CONFIG": json.dumps({"save_chunk_meta": False}),
        "STALLSCOPE_PATCHES": "none",
    }
    with serve(mla, tmp_path / "stock", CONNECTOR, environment, *PCP) as server:
        assert server.ask(asked).status == 200
        assert server.ask(asked).status == 500
        assert any("received None chunk_count" in line for line in server.trouble())


@pytest.mark.soak
def test_sharded_on_the_later_lmcache(mla: Path, shards, tmp_path: Path) -> None:
    asked = prompt(PROMPT_TOKENS, 1)
    environment = as_in_the_post(shards.url)
    for folder, tier in (("a", "l1"), ("b", "l2")):
        with serve(mla, tmp_path / folder, CONNECTOR, environment, *PCP, lmcache="0.5.6") as server:
            answers = [server.ask(asked) for _ in range(2 if tier == "l1" else 1)]
            assert {answer.status for answer in answers} == {200}
            check_loaded(server, tier)
            assert server.trouble() == []
