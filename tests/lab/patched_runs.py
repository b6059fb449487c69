"""Runs of the lab on the patched engine, with faults done to its shard from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import redis

from exporters.readers.pages import PageFolder
from lab.settings import CHUNK_TOKENS
from tests.lab.runs import ROOT, LabRun, end, leftovers, start

# Short prompts and an L1 that holds few of them: loads come from the shard soon, and often.
STREAM = ("--l1-memory", "6", "--prompt-tokens", "2048-6144")

NAMES = """
import json, sys
from lab import kv
from lab.engine import configuration, metadata
from lab.settings import Settings
from lmcache.v1.token_database import ChunkedTokenDatabase
ranks, rank, prompts = json.load(sys.stdin)
settings = Settings(ranks=ranks)
database = ChunkedTokenDatabase(
    configuration(settings, "resp://127.0.0.1:1"), metadata(settings, "worker", rank, "names"))
print(json.dumps({
    name: [key.to_string() for _, _, key in database.process_tokens(kv.prompt_tokens(ids, length))]
    for name, ids, length in prompts}))
"""


class Run:
    """A run on the patched engine: its shard, its ranks' processes, and at the end its rows."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.pages = tmp_path / "pages"
        self.kept = tmp_path / "kept"
        folders = ("--pages", str(self.pages), "--keep", str(self.kept))
        self.lab: LabRun = start(tmp_path, "--engine", "patched", *STREAM, *folders, *arguments)
        self.lab.wait_for(r"stallscope diagnose --from")
        self.port = self.lab.shard_port()
        self._folder = PageFolder(self.pages)
        self._restarted: list[subprocess.Popen[bytes]] = []

    def processes(self) -> list[Any]:
        """The pages' processes, the ranks' in order, then the scheduler's."""
        found = [page.process for page in self._folder.read(time.monotonic_ns()).pages]
        return sorted(found, key=lambda one: (one.rank is None, one.rank))

    def counted(self, name: str) -> int:
        """One of the pages' counters, all processes together."""
        return sum(process.counters[name] for process in self.processes())

    def wait_for_count(self, name: str, more: int = 1, seconds: float = 20.0) -> float:
        """Seconds until it has grown by that much."""
        begun = time.monotonic()
        first = self.counted(name)
        while self.counted(name) < first + more:
            assert self.lab.process.poll() is None, self.lab.log.read_text()
            assert time.monotonic() - begun < seconds, f"{name} stays at {first}"
            time.sleep(0.02)
        return time.monotonic() - begun

    def resources(self) -> dict[int, tuple[int, int, int]]:
        """By pid: descriptors, threads, resident bytes of each rank's process."""
        found = {}
        for process in self.processes():
            if process.rank is not None:
                system = psutil.Process(process.pid)
                found[process.pid] = (
                    system.num_fds(),
                    system.num_threads(),
                    system.memory_info().rss,
                )
        return found

    def server(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=2.0)

    def server_pid(self) -> int:
        with self.server() as client:
            info: Any = client.info("server")
        return int(info["process_id"])

    def kill_server(self) -> list[str]:
        """kill -9; returns the command line that starts one like it there."""
        process = psutil.Process(self.server_pid())
        command = [process.exe(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        process.kill()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(5)
        return command

    def start_server(self, command: list[str]) -> float:
        """The same server, empty; returns when it answered, on the monotonic clock."""
        process = subprocess.Popen(
            command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._restarted.append(process)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError), self.server() as client:
                if client.ping():
                    return time.monotonic()
            time.sleep(0.01)
        raise AssertionError(f"{command} does not answer")

    @contextlib.contextmanager
    def frozen_server(self) -> Iterator[None]:
        pid = self.server_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def cut_connections(self) -> int:
        """CLIENT KILL of every connection of the ranks; how many there were."""
        killed = 0
        with self.server() as client:
            own = client.client_id()
            clients: Any = client.client_list(_type="normal")
            for each in clients:
                if int(each["id"]) != own and each["cmd"] in ("get", "set", "exists"):
                    with contextlib.suppress(redis.ResponseError):
                        killed += int(client.client_kill_filter(_id=each["id"]) or 0)
        return killed

    def seconds_until_asked(self, since: float, ranks: int) -> float:
        """From `since` until every rank has been answered an EXISTS, a GET or a SET again."""
        base = self._answered()
        while True:
            if self._answered() >= base + ranks:
                return time.monotonic() - since
            assert time.monotonic() - since < 15, "nobody asks the server again"
            time.sleep(0.02)

    def _answered(self) -> int:
        with self.server() as client:
            stats: Any = client.info("commandstats")
        names = ("cmdstat_exists", "cmdstat_get", "cmdstat_set")
        return sum(
            stats[name]["calls"] - stats[name]["failed_calls"] for name in names if name in stats
        )

    def result(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The report and each request's raw row; nothing may be left of the run."""
        try:
            report = self.lab.result()
        finally:
            self.end()
        rows = json.loads((self.kept / "scheduler.json").read_text())["requests"]
        return report, rows

    def end(self) -> None:
        self._folder.close()
        end(self.lab)
        for process in self._restarted:
            process.kill()
            process.wait()
        assert leftovers(self.lab) == []


@contextlib.contextmanager
def patched_run(tmp_path: Path, *arguments: str) -> Iterator[Run]:
    run = Run(tmp_path, *arguments)
    try:
        yield run
    finally:
        run.end() if run.lab.process.poll() is None else None


class Deletions:
    """The keys that are deleted at a server, in order, as its own keyspace events tell."""

    def __init__(self, port: int) -> None:
        server = redis.Redis(port=port)  # no timeout: a busy machine must not end the listening
        server.config_set("notify-keyspace-events", "Eg")
        self.keys: list[str] = []
        self._events = server.pubsub(ignore_subscribe_messages=True)
        self._events.subscribe("__keyevent@0__:del")
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError, ValueError):  # the run's end
            while True:
                event = self._events.get_message(timeout=None)
                if event is not None:
                    self.keys.append(event["data"].decode())


def chunk_names(rows: list[dict[str, Any]], ranks: int, rank: int) -> dict[str, list[str]]:
    """By request: the names of its chunks at the shard, as this rank stores them."""
    prompts = [
        (row["request"]["id"], row["request"]["block_ids"], row["request"]["length_tokens"])
        for row in rows
    ]
    done = subprocess.run(
        [sys.executable, "-c", NAMES],
        input=json.dumps([ranks, rank, prompts]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", "LMCACHE_LOG_LEVEL": "ERROR"},
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def chunks(tokens: int) -> int:
    return tokens // CHUNK_TOKENS


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
