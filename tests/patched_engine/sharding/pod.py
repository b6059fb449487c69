"""A pod as a test sees it: W real engines that a scheduler would drive, driven by the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from exporters.readers.pages import PageFolder
from tests.patched_engine.patches import programs
from tests.patched_engine.patches.engine import CHUNK_BYTES, CHUNK_TOKENS

SWITCH = {"pcp_shard_store": True}
WRONG = ("Double", "Traceback", "negative", "Error releasing", "could not be given back")


class Nursery:
    """The process that has imported LMCache and forks ranks."""

    def __init__(self, folder: Path, version: str = "0.5.5", patches: str = programs.ALL) -> None:
        pages = folder / "pages"
        pages.mkdir()
        self.folder, self.pages, self.version = folder, pages, version
        environment = programs.environment(
            folder, version, patches, STALLSCOPE_DIR=str(pages), LMCACHE_LOG_LEVEL="WARNING"
        )
        self._errors = (folder / "nursery.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.patched_engine.sharding.nursery"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "nursery.log").read_text()
        return line

    def fork(self, spec: dict[str, Any]) -> list[int]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(spec) + "\n")
        self.process.stdin.flush()
        pids: list[int] = json.loads(self._line())
        return pids

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._errors.close()


class Pod:
    """W ranks. Every method asks all of them at once and gives their answers in rank order."""

    def __init__(self, nursery: Nursery, world_size: int, url: str, **chosen: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=nursery.folder))
        self.world_size = world_size
        self.nursery = nursery
        self.spec: dict[str, Any] = {
            "folder": str(self.folder),
            "world_size": world_size,
            "ranks": list(range(world_size)),
            "url": url,
            "is_async": False,
            "pod_bytes": world_size * (16 << 20),
            "blocking_seconds": 2,
            "lookup_seconds": 1.5,
            "collective_seconds": 20,
            "join": True,
            "extra": SWITCH,
            "settings": {},
            "environment": {},
            **chosen,
        }
        self.is_async = bool(self.spec["is_async"])
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "control"))
        listener.listen(world_size)
        listener.settimeout(30)
        self.pids = nursery.fork(self.spec)
        self._streams: dict[int, Any] = {}
        with listener:
            for _ in self.spec["ranks"]:
                channel, _ = listener.accept()
                channel.settimeout(60)
                stream = channel.makefile("rw")
                channel.close()
                self._streams[json.loads(stream.readline())["rank"]] = stream
        self.begun = [self._hear(rank) for rank in self.spec["ranks"]]

    def _say(self, rank: int, name: str, *arguments: Any) -> None:
        self._streams[rank].write(json.dumps([name, arguments]) + "\n")
        self._streams[rank].flush()

    def _hear(self, rank: int) -> Any:
        try:
            line = self._streams[rank].readline()
        except (OSError, TimeoutError) as error:
            return {"error": "stuck", "why": repr(error)}
        return json.loads(line) if line else {"error": "dead", "why": self.log(rank)[-2000:]}

    def all(self, name: str, *arguments: Any) -> list[Any]:
        return self.some(self.spec["ranks"], name, *arguments)

    def some(self, ranks: Sequence[int], name: str, *arguments: Any) -> list[Any]:
        for rank in ranks:
            self._say(rank, name, *arguments)
        return [self._hear(rank) for rank in ranks]

    def one(self, rank: int, name: str, *arguments: Any) -> Any:
        return self.some([rank], name, *arguments)[0]

    def store(self, seed: int, length: int, skip: int = 0) -> None:
        self.all("store", seed, length, skip)
        assert all(self.all("settle"))

    def answers(self, name: str, seed: int, length: int) -> list[Any]:
        """What each rank answers; None where an asynchronous one does not."""
        found = self.all("ask", name, seed, length)
        return self.all("answer", name) if self.is_async else found

    def lookup(self, name: str, seed: int, length: int) -> int:
        """As the scheduler takes it: the smallest."""
        found = self.answers(name, seed, length)
        assert None not in found, found
        return min(found)

    def load(self, name: str, seed: int, length: int, skip: int = 0) -> list[dict[str, Any]]:
        """As vLLM does it: what was found, then the unpinning of its store."""
        loaded = self.all("load", name, seed, length, skip)
        self.all("unpin", name)
        return loaded

    def bring(self, name: str, seed: int, length: int, skip: int = 0) -> int:
        """Look up and load; tokens found, which every rank must then have, byte for byte."""
        found = self.lookup(name, seed, length)
        if found > skip:
            self.are_right(self.load(name, seed, found, skip), found - skip)
        else:
            self.all("unpin", name)
        return found

    def are_right(self, loaded: list[dict[str, Any]], tokens: int) -> None:
        for rank, one in enumerate(loaded):
            assert one.get("loaded") == tokens, (rank, loaded, tokens)
            assert one["equal"] and one["in_a_row"], (rank, one)

    def is_clean(self) -> None:
        """Nothing is pinned, referenced or held beside L1; nothing was freed twice."""
        deadline = time.monotonic() + 3
        while True:
            states = self.all("state")
            bad = [
                state
                for state in states
                if state["refs"] or state["pins"] or state["stray_bytes"] or state["events"]
            ]
            if not bad or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert not bad, [{k: v for k, v in state.items() if k != "l1"} for state in bad]
        self.has_no_complaint()

    def has_no_complaint(self) -> None:
        for rank in self.spec["ranks"]:
            text = self.log(rank)
            assert not [word for word in WRONG if word in text], text

    def log(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.log").read_text(errors="replace")

    def counters(self) -> list[dict[str, int]]:
        """The pages' counters, in rank order."""
        folder = PageFolder(self.nursery.pages)
        try:
            found = {
                page.process.pid: dict(page.process.counters)
                for page in folder.read(time.monotonic_ns()).pages
            }
        finally:
            folder.close()
        return [found[pid] for pid in self.pids]

    def end(self) -> None:
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def pod(nursery: Nursery, world_size: int, url: str, **chosen: Any) -> Iterator[Pod]:
    made = Pod(nursery, world_size, url, **chosen)
    try:
        yield made
    finally:
        made.end()


def tokens(chunks: int) -> int:
    return chunks * CHUNK_TOKENS


def size_bytes(chunks: int) -> int:
    return chunks * CHUNK_BYTES


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
