"""`stallscope lab up`: all of it answers, Ctrl-C leaves nothing, and what ends is named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request

import pytest
import redis

from lab.up import HEALTHY_SECONDS
from tests.prometheus_binary import programs
from tests.runbooks.command_line import COMMAND, environment, stallscope


@contextlib.contextmanager
def standing(*arguments: str):
    process = subprocess.Popen(
        # A job in the background inherits SIGINT ignored, which lab up respects.
        ["env", "--default-signal=INT", *COMMAND, "lab", "up", "--json", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def alive(pids: list[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("shards", [2, 8])
def test_all_is_up_and_ctrl_c_leaves_nothing(shards: int) -> None:
    server, _ = programs()
    with standing("--shards", str(shards), "--prometheus", server) as (process, told):
        assert told["healthy_after_seconds"] < HEALTHY_SECONDS
        assert len(told["shards"]) == shards
        assert told["missing"] == []
        for url in told["shards"]:
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        deadline = time.monotonic() + 10
        while f'stallscope_source_up{{source="{told["shards"][-1]}"}} 1.0' not in (
            get(f"{told['exporters']['shards']}/metrics")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        rules = json.loads(get(f"{told['prometheus']}/api/v1/rules"))["data"]["groups"]
        assert sum(len(group["rules"]) for group in rules) > 10
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "nothing is left" in said
        assert alive(list(told["pids"].values())) == []
        assert not os.path.exists(told["pages"])


def test_a_shard_that_ends_is_named_and_all_is_stopped() -> None:
    with standing("--shards", "2", "--prometheus", "none") as (process, told):
        os.kill(told["pids"]["shard 1"], signal.SIGKILL)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 70
        assert "shard 1" in said and "has ended" in said
        assert len(said.strip().splitlines()) == 1
        assert alive(list(told["pids"].values())) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--shards", "0"), "give 1 to 16"),
        (("--prometheus", "/no/such"), "no such program"),
        (("--valkey-server", "/no/such"), "no such program"),
        (("--pages", "/proc/none"), "--pages"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    run = stallscope("lab", "up", *arguments)
    assert run.code == 64
    assert says in run.line()
