"""What the hooks write about a real LMCache engine and a real Valkey, against what it did."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from patched_engine.hooks.work import owned_chunks
from patched_engine.recorder import url_without_credentials
from tests.patched_engine import engine_rank
from tests.patched_engine.decode import Decoded, decode
from tests.servers import valkey_server

ROOT = Path(__file__).parents[2]
TRIES = 4
PROGRAM = Path(engine_rank.__file__)
FULL_TOKENS = engine_rank.CHUNKS * engine_rank.CHUNK_TOKENS


@pytest.fixture(scope="module", params=["0.5.5", "0.5.6"])
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, object], str, Decoded]]:
    """(what the engine says it did, the key it waits for, its page then)."""
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed")
    path = str(ROOT)
    if request.param == "0.5.6":
        second = Path(sys.prefix) / "lmcache-0.5.6"
        if not second.is_dir():
            pytest.skip("LMCache 0.5.6 is not beside the environment (make setup)")
        path = f"{second}:{path}"
    for _ in range(TRIES):
        pages = tmp_path_factory.mktemp("pages")
        with valkey_server() as port, _engine(port, pages, path) as engine:
            assert engine.stdout is not None
            said = (line for line in engine.stdout if line.startswith(("{", "m@")))
            lines = list(itertools.islice(said, 2))
            if not lines and engine.wait() == engine_rank.STUCK_EXIT:
                continue
            time.sleep(1.2)  # the GET is under way, and the heartbeat has listed the late hooks
            (page,) = pages.glob("*.page")
            yield json.loads(lines[0]), lines[1].strip(), decode(page)
            return
    pytest.fail(f"the stock client lost a completion in {TRIES} runs running (upstream #5547)")


@contextlib.contextmanager
def _engine(port: int, pages: Path, path: str) -> Iterator[subprocess.Popen[str]]:
    engine = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(port)],
        cwd=pages,
        env={
            **os.environ,
            "STALLSCOPE_DIR": str(pages),
            "PYTHONPATH": path,
            "PYTHONHASHSEED": "0",
            "LMCACHE_LOG_LEVEL": "ERROR",
            "LMCACHE_TRACK_USAGE": "false",
            "PROMETHEUS_MULTIPROC_DIR": str(pages),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield engine
    finally:
        engine.kill()
        engine.wait()


Ran = tuple[dict[str, object], str, Decoded]


def test_the_engines_work_is_untouched(ran: Ran) -> None:
    did, _, _ = ran
    assert did == {
        "found": FULL_TOKENS,
        "from_l1": FULL_TOKENS,
        "from_l2": FULL_TOKENS,
        "bytes_equal": True,
        "faults": {},
    }


def test_the_header_says_who_and_how(ran: Ran) -> None:
    info = ran[2].info
    assert (info["engine_id"], info["roles"], info["rank"], info["world_size"]) == (
        "engine-under-test",
        ["worker"],
        engine_rank.RANK,
        engine_rank.WORLD_SIZE,
    )
    assert info["timeouts"] == {"lookup_seconds": 2.5, "blocking_seconds": 7.0}
    assert info["chunk_tokens"] == engine_rank.CHUNK_TOKENS
    assert len(info["key_fingerprint"]) == 16
    assert info["save_only_first_rank"] is False
    assert len(info["connections"]) == 3, "one a thread of the client, and the test's own"
    absent = [name for name, state in info["hooks"].items() if state != "attached"]
    assert absent == []
    assert "ConnectorClientBase.batch_get_sync" in info["hooks"]


def test_bytes_and_chunks_are_exact(ran: Ran) -> None:
    counters = ran[2].counters
    chunks, chunk_bytes = engine_rank.CHUNKS, engine_rank.CHUNK_BYTES
    assert counters["store_calls"] == 2
    assert counters["store_tokens"] == FULL_TOKENS + engine_rank.TAIL_TOKENS
    assert counters["store_chunks"] == counters["put_l2_chunks"] == chunks
    assert counters["store_bytes"] == counters["put_l2_bytes"] == chunks * chunk_bytes
    assert counters["store_expected_chunks"] == 3, "chunks 1, 3 and 5 of 0..6 are rank 1's share"
    assert counters["load_calls"] == 2
    assert counters["load_tokens"] == 2 * FULL_TOKENS
    assert counters["load_l1_bytes"] == counters["load_l2_bytes"] == chunks * chunk_bytes
    assert counters["lookup_hit_tokens"] == FULL_TOKENS
    assert counters["client_get_answered_keys"] == chunks
    assert counters["client_get_failed_keys"] == 0
    assert counters["hook_faults"] == 0


def test_operations_carry_their_tier_and_times(ran: Ran) -> None:
    operations = ran[2].operations
    assert [(o.kind, o.tier, o.chunks, o.expected_chunks) for o in operations] == [
        ("store", "l1", 2, 1),
        ("store", "l1", 5, 2),
        ("lookup", "", 0, 0),
        ("load", "l1", 7, 0),
        ("load", "l2", 7, 0),
    ]
    ends = [o.end_ns for o in operations]
    assert all(o.end_ns > o.start_ns for o in operations)
    assert ends == sorted(ends)


def test_a_get_that_is_never_answered_stands_in_the_page(ran: Ran) -> None:
    (pending,) = ran[2].pending
    assert (pending.kind, pending.key_count) == ("get", 1)
    assert pending.first_key == ran[1]
    assert pending.timeout_ns == 7_000_000_000


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_the_expected_share_counts_owned_chunks(world_size: int) -> None:
    for first in range(0, 20):
        for last in range(first, 40):
            shares = [owned_chunks(first, last, r, world_size) for r in range(world_size)]
            counted = [
                sum(c % world_size == r for c in range(first, last)) for r in range(world_size)
            ]
            assert shares == counted


def test_credentials_never_reach_the_page() -> None:
    url = "resp://user:p%40ss@valkey-lmcache-{rank}.vllm.svc:6379"
    assert url_without_credentials(url) == "resp://valkey-lmcache-{rank}.vllm.svc:6379"
    assert url_without_credentials("resp://[::1]:6379") == "resp://[::1]:6379"
    assert url_without_credentials("") == ""
