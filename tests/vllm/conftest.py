"""Models and shards for the vLLM tests: made once, ended by pid."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from lab.valkey import RANK_HOST, find_server, free_port, rank_hosts
from tests.vllm import models


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))  # a start takes a minute on an idle machine


@pytest.fixture(scope="session", autouse=True)
def has_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("STALLSCOPE_NEEDS_VLLM"):
            pytest.fail("vLLM is not in this environment: make setup-vllm")
        pytest.skip("vLLM is not installed here: make test-vllm")


@pytest.fixture(scope="session")
def mla(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("tiny-mla", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("tiny-llama", tmp_path_factory.mktemp("models"))


@dataclass
class Shards:
    """One Valkey a rank, at addresses that differ in the rank alone."""

    port: int
    hosts: list[str]

    @property
    def url(self) -> str:
        return f"resp://{RANK_HOST}:{self.port}"

    def first_url(self) -> str:
        return f"resp://{self.hosts[0]}:{self.port}"

    def chunks(self) -> list[int]:
        """How many chunks each holds, our mark left out."""
        counts = []
        for host in self.hosts:
            with redis.Redis(host=host, port=self.port) as server:
                counts.append(sum(not key.startswith(b"stallscope:") for key in server.scan_iter()))
        return counts

    def empty(self) -> None:
        for host in self.hosts:
            with redis.Redis(host=host, port=self.port) as server:
                server.flushall()


@pytest.fixture
def shards() -> Iterator[Shards]:
    hosts = rank_hosts(2)
    port = free_port(hosts)
    with contextlib.ExitStack() as running:
        for host in hosts:
            process = subprocess.Popen(
                [
                    *(find_server(""), "--port", str(port), "--bind", host),
                    *("--save", "", "--appendonly", "no", "--maxmemory", str(1 << 30)),
                ],
                stdout=subprocess.DEVNULL,
            )
            running.callback(process.wait)
            running.callback(process.kill)
        deadline = time.monotonic() + 10
        for host in hosts:
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.RedisError), redis.Redis(host=host, port=port) as it:
                    if it.ping():
                        break
                time.sleep(0.05)
        yield Shards(port, hosts)
