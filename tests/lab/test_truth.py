"""What a run claims, held against what is known from elsewhere: bytes, tiers, arrivals."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.lab.runs import ROOT, end, leftovers, run, start

pytest.importorskip("torch")
pytest.importorskip("lmcache")

# Short prompts, and an L1 that holds few of them: a document's next round must come from the shard.
SMALL_L1 = ("--l1-memory", "6", "--prompt-tokens", "2048-6144", "--rate", "3")
KEYS = {"schema", "incident", "engine", "ranks", "shards", "requests", "bytes_equal", "per_rank"}


def mooncake() -> Path:
    folder = Path(os.environ.get("STALLSCOPE_DATA", ROOT.parent / "shared" / "data"))
    path = folder / "requests" / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} in {folder} (set STALLSCOPE_DATA)")
    return path


@pytest.mark.parametrize("version", ["0.5.5", pytest.param("0.5.6", marks=pytest.mark.soak)])
def test_a_healthy_run_loads_the_right_bytes_from_both_tiers(tmp_path: Path, version: str) -> None:
    result = run(
        tmp_path,
        "--ranks",
        "2",
        "--shards",
        "2",
        "--seconds",
        "12",
        "--lmcache",
        version,
        *SMALL_L1,
    )
    assert set(result) >= KEYS
    assert (result["schema"], result["incident"], result["engine"]) == (1, None, "stock")
    assert result["bytes_equal"] is True
    source = result["requests"]["source"]
    assert source["l1_tokens"] > 0
    assert source["l2_tokens"] > 0
    assert result["requests"]["count"] > 3
    ttft = result["requests"]["ttft_seconds"]
    assert 0 < ttft["p50"] <= ttft["p99"]
    stored = [rank["store_bytes"] for rank in result["per_rank"]]
    assert stored[0] > 0
    assert max(stored) <= 1.05 * min(stored), "healthy: every rank stores its own copy"
    assert result["findings"] == []


def test_a_flipped_byte_in_valkey_makes_bytes_unequal(tmp_path: Path) -> None:
    lab = start(tmp_path, "--ranks", "2", "--seconds", "14", *SMALL_L1)
    stop = threading.Event()
    flipped: set[bytes] = set()

    def flip() -> None:
        # The run ends its server when it is over.
        with suppress(redis.RedisError), redis.Redis(port=lab.shard_port()) as client:
            while not stop.wait(0.05):
                for key in client.scan_iter():
                    if key not in flipped and client.strlen(key) > 4096:
                        byte = client.getrange(key, 4096, 4096)
                        client.setrange(key, 4096, bytes([byte[0] ^ 1]))
                        flipped.add(key)

    flipper = threading.Thread(target=flip, daemon=True)
    flipper.start()
    try:
        result = lab.result()
    finally:
        stop.set()
        flipper.join(timeout=5)
        end(lab)
    assert leftovers(lab) == []
    assert flipped
    assert result["requests"]["source"]["l2_tokens"] > 0
    assert result["bytes_equal"] is False


def test_nothing_loaded_is_not_equal(tmp_path: Path) -> None:
    result = run(tmp_path, "--ranks", "2", "--seconds", "5", "--hit-rate", "0")
    assert result["requests"]["source"]["l1_tokens"] == 0
    assert result["bytes_equal"] is False


def test_rank0_stores_everything_and_is_charged_what_the_stamps_say(tmp_path: Path) -> None:
    result = run(tmp_path, "--ranks", "4", "--seconds", "20", "--incident", "rank0-store")
    per_rank: list[dict[str, Any]] = result["per_rank"]
    assert [rank["rank"] for rank in per_rank] == [0, 1, 2, 3]
    assert per_rank[0]["store_bytes"] > 0
    assert [rank["store_bytes"] for rank in per_rank[1:]] == [0, 0, 0]
    charged, stamped = per_rank[0]["charged_seconds"], per_rank[0]["stamped_charged_seconds"]
    assert charged == pytest.approx(stamped, rel=0.1)
    assert charged > 3 * max(rank["charged_seconds"] for rank in per_rank[1:])
    first = result["findings"][0]
    assert (first["id"], first["rank"]) == ("store-skew", 0)
    assert first["named_after_seconds"] < 10 + 5  # decidable after 10 s of wall


def test_slow_rank_is_the_one_that_the_seed_draws(tmp_path: Path) -> None:
    result = run(
        tmp_path, "--ranks", "2", "--seconds", "40", "--incident", "slow-rank", "--seed", "3"
    )
    drawn = result["expected"]["rank"]
    first = result["findings"][0]
    assert (first["id"], first["rank"]) == ("straggler-rank", drawn)
    assert first["named_after_seconds"] < 32 + 5  # decidable after three windows of 30 s
    assert result["bytes_equal"] is True


def test_mooncake_requests_share_prefixes(tmp_path: Path) -> None:
    result = run(
        tmp_path, "--ranks", "2", "--seconds", "8", "--requests", str(mooncake()),
        "--time-scale", "0.05",
    )  # fmt: skip
    assert result["requests"]["count"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ranks", "1"), "--ranks"),
        (("--ranks", "9"), "--ranks"),
        (("--valkey-server", "/no/such/server"), "/no/such/server"),
        (("--requests", "/no/such/file"), "/no/such/file"),
        (("--incident", "no-such-incident"), "no-such-incident"),
        (("--seconds", "-1"), "--seconds"),
        (("--lmcache", "9.9"), "9.9"),
    ],
)
def test_bad_values_get_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    lab = start(tmp_path, *arguments)
    out, _ = lab.process.communicate(timeout=30)
    assert lab.process.returncode == 64
    assert out == ""
    last = lab.log.read_text().strip().splitlines()[-1]
    assert said in last
    assert "Traceback" not in lab.log.read_text()
    assert leftovers(lab) == []


def test_a_broken_request_file_names_its_line(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    good = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
    requests.write_text(json.dumps(good) + "\n{half\n")
    lab = start(tmp_path, "--requests", str(requests))
    lab.process.communicate(timeout=30)
    assert lab.process.returncode == 64
    assert "2" in lab.log.read_text().strip().splitlines()[-1]
