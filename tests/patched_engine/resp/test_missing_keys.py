"""A missing key is a miss, in milliseconds and for ever, where the native client hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from patched_engine.resp import NO_DEADLINES
from tests.patched_engine.resp.conftest import MakeClient
from tests.patched_engine.resp.missing_keys import (
    COUNT,
    GOOD_KEY,
    GOOD_VALUE,
    LIMIT_SECONDS,
    missing_then_good,
)
from tests.patched_engine.resp.real_servers import KINDS, real_server

TRIES = 5


@pytest.mark.parametrize(
    ("kind", "protocol"), [*((kind, "2") for kind in KINDS), (KINDS[0], "3"), (KINDS[2], "3")]
)
def test_a_thousand_missing_keys_on_one_connection_without_deadlines(
    make_client: MakeClient, kind: str, protocol: str, tmp_path: Path
) -> None:
    with real_server(kind, tmp_path) as server:
        client = make_client(f"{server.url}?protocol={protocol}", deadlines=NO_DEADLINES)
        assert client.set([GOOD_KEY], [GOOD_VALUE])[0].ok

        def get(key: str, buffer: bytearray) -> bool:
            (result,) = client.get([key], [buffer])
            assert not result.is_error
            return result.ok

        seconds = missing_then_good(get)
        assert len(seconds) == COUNT
        for _ in range(TRIES):  # a busy machine delays now this key, now that; a client always one
            if max(seconds) < LIMIT_SECONDS:
                break
            seconds = [min(pair) for pair in zip(seconds, missing_then_good(get), strict=True)]
        assert max(seconds) < LIMIT_SECONDS


def test_the_native_client_does_not_pass_this(tmp_path: Path) -> None:
    pytest.importorskip("lmcache")
    with real_server("valkey 9.1.2", tmp_path) as server:
        command = [sys.executable, "-m", "tests.patched_engine.resp.missing_keys", str(server.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = [line for line in done.stdout.splitlines() if "GET" in line or "served" in line]
    assert said == ["a present key is served", "a GET hangs"], done.stderr[-500:]
    assert done.returncode == 3
