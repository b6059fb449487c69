"""1,000,000 real calls from 8 threads: not one is lost (LMCache #5547 lost them)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from patched_engine.resp import RespClient
from tests.patched_engine.resp.real_servers import real_server
from tests.patched_engine.resp.soak.record import record

CALLS = 1_000_000
THREADS = 8
VALUE_BYTES = 64
HANG_SECONDS = 60.0
RESULT = Path(__file__).parent / "million_calls.json"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["compiled", "pure"])
def test_a_million_calls_from_eight_threads(engine: str, tmp_path: Path) -> None:
    counts, wrong = [0] * THREADS, []
    with (
        real_server("valkey 9.1.2", tmp_path) as server,
        RespClient(server.url, connections=8, engine=engine) as client,
    ):
        values = [f"{i:064}".encode() for i in range(64)]
        assert all(r.ok for r in client.set([f"k{i}" for i in range(64)], values))

        def work(number: int) -> None:
            buffer = bytearray(VALUE_BYTES)
            for call in range(CALLS // THREADS):
                key = (call * 7 + number) % 96  # a third of them missing
                if call % 4:
                    (result,) = client.get([f"k{key}"], [buffer])
                    good = result.ok and buffer == values[key] if key < 64 else result.is_miss
                else:
                    (result,) = client.exists([f"k{key}"])
                    good = result.ok == (key < 64) and not result.is_error
                if not good:
                    wrong.append((call, key, result))
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        seen, since = 0, begin
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.5)
            if sum(counts) > seen:
                seen, since = sum(counts), time.monotonic()
            assert time.monotonic() - since < HANG_SECONDS, f"lost after {seen} calls"
        seconds = time.monotonic() - begin
        assert not client._pending
    assert sum(counts) == CALLS // THREADS * THREADS
    assert wrong == []
    figures = {"calls": sum(counts), "threads": THREADS, "lost": 0, "seconds": round(seconds, 1)}
    record(RESULT, engine, figures, valkey="9.1.2")
