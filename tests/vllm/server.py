"""A real `vllm serve` on a CPU for tests: its environment, its requests, its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers import free_port

HERE = Path(__file__).parent
START_SECONDS = 240.0
REQUEST_SECONDS = 120.0
OUTPUT_TOKENS = 8
CONNECTOR = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [CONNECTOR]},
}
# What must be in no log of a good run.
TROUBLE = re.compile(
    r"Double (free|unpin)|is negative|invalidated MemoryObj|still waiting for async lookup"
    r"|lookup.{0,20}timed? ?out|received None chunk_count|Traceback|ERROR"
    r"|less than the expected number of tokens|degraded mode"
)


@dataclass
class Answer:
    """One request's answer: HTTP status, seconds, the log-probabilities of what it generated, and
    those of the likeliest first tokens, which the prompt's KV alone decides."""

    status: int
    seconds: float
    logprobs: list[float] = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)


@dataclass
class Server:
    """A running server, its log and its pages."""

    port: int
    log: Path
    pages: Path

    def ask(self, prompt: list[int]) -> Answer:
        body = {
            "model": "m",
            "prompt": prompt,
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 5,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as reply:
                said: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            return Answer(error.code, time.monotonic() - begun)
        logprobs = said["choices"][0]["logprobs"]
        return Answer(
            200,
            time.monotonic() - begun,
            logprobs["token_logprobs"],
            logprobs["top_logprobs"][0],
        )

    def lines(self, text: str) -> list[str]:
        """Lines of the log that have this text."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    def trouble(self) -> list[str]:
        """Lines of the log that no good run has."""
        return [
            line
            for line in self.log.read_text(errors="replace").splitlines()
            if TROUBLE.search(line)
        ]


def prompt(tokens: int, seed: int) -> list[int]:
    """Token ids that no other seed's prompt begins with."""
    return [(seed * 131 + i * seed + i * i) % 500 + 3 for i in range(tokens)]


@contextlib.contextmanager
def serve(
    model: Path,
    folder: Path,
    connector: dict[str, Any],
    environment: dict[str, str],
    *arguments: str,
    lmcache: str = "0.5.5",
) -> Iterator[Server]:
    """Start, wait until it serves, and end every process of it."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    log, pages = folder / "vllm.log", folder / "pages"
    pages.mkdir(exist_ok=True)
    path = [str(HERE / "site")]
    if lmcache != "0.5.5":
        second = Path(sys.prefix) / f"lmcache-{lmcache}"
        if not second.is_dir():
            pytest.skip(f"LMCache {lmcache} is not beside the environment")
        path.insert(0, str(second))
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("LMCACHE_", "STALLSCOPE_"))},
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_LOG_LEVEL": "WARNING",
        "STALLSCOPE_DIR": str(pages),
        "STALLSCOPE_TEST_CPU": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    command = [
        *(str(Path(sys.prefix) / "bin" / "vllm"), "serve", str(model), "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048"),
        *("--enforce-eager", "--max-num-seqs", "4", "--no-enable-prefix-caching"),
        *("--kv-transfer-config", json.dumps(connector), *arguments),
    ]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait_until_up(process, port, log)
        yield Server(port, log, pages)
    finally:
        _end(process)


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            return
        time.sleep(0.5)
    pytest.fail("vLLM does not serve:\n" + "\n".join(log.read_text().splitlines()[-30:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and its children: asked first, for their pages and sockets, then made to."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(family, timeout=15)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, timeout=10)
    process.wait()
