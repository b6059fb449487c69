"""Patches on, nothing sharded, no MLA: what is loaded gives exactly what was computed."""

from __future__ import annotations

import json
import time
from pathlib import Path

from exporters.readers.pages import PageFolder
from tests.vllm.server import CONNECTOR, Server, prompt, serve

CHUNK_TOKENS = 256


def loaded_chunks(server: Server) -> int:
    """What came from L2, as the worker's page has it."""
    folder = PageFolder(server.pages)
    try:
        samples = folder.read(time.monotonic_ns()).pages
    finally:
        folder.close()
    return sum(sample.process.counters["load_l2_chunks"] for sample in samples)


def test_answers_are_exact(llama: Path, shards, tmp_path: Path) -> None:
    asked = prompt(700, 3)
    environment = {
        "LMCACHE_CHUNK_SIZE": str(CHUNK_TOKENS),
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5",
        "LMCACHE_REMOTE_URL": shards.first_url(),
        "LMCACHE_EXTRA_CONFIG": json.dumps({"resp_num_threads": 4}),
    }
    arguments = ("--load-format", "auto", "--dtype", "float32")
    with serve(llama, tmp_path / "a", CONNECTOR, environment, *arguments) as server:
        cold, from_l1 = server.ask(asked), server.ask(asked)
        assert server.trouble() == []
    assert shards.chunks()[0] == 700 // CHUNK_TOKENS
    with serve(llama, tmp_path / "b", CONNECTOR, environment, *arguments) as server:
        from_l2 = server.ask(asked)
        assert server.trouble() == []
        assert loaded_chunks(server) == 700 // CHUNK_TOKENS
    assert cold.status == from_l1.status == from_l2.status == 200
    assert from_l1.logprobs == cold.logprobs == from_l2.logprobs
