"""Our exporter for 8 shards and 8 pages, beside eight redis_exporters on the same shards."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.report import QUICK
from patched_engine.page import Page
from patched_engine.resp.build import private_folder
from tests.servers import free_port, valkey_server

SHARDS = 8
ROUNDS = 8 if QUICK else 60
BETWEEN_SECONDS = 0.2 if QUICK else 0.5
VALUES, VALUE_BYTES = 400, 20_000
PACKAGE = "prometheus-redis-exporter"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Beside:
    """Milliseconds of each round's scrapes, then MB and CPU of all processes of a kind."""

    theirs_ms: list[float]
    ours_ms: list[float]
    again_ms: list[float]
    theirs_megabytes: float
    ours_megabytes: float
    theirs_cpu_seconds: float
    ours_cpu_seconds: float
    wall_seconds: float
    theirs_series: int
    ours_series: int

    @property
    def ratio(self) -> float:
        """Ours over theirs: the median of the rounds' own."""
        rounds = zip(self.theirs_ms, self.ours_ms, self.again_ms, strict=True)
        return statistics.median(2 * ours / (a + b) for a, ours, b in rounds)

    @property
    def noise(self) -> float:
        pairs = zip(self.theirs_ms, self.again_ms, strict=True)
        return statistics.median(abs(b / a - 1) for a, b in pairs)


def their_program() -> str | None:
    """The peer from PATH, else unpacked once a machine from Debian's package; None without."""
    if found := shutil.which(PACKAGE):
        return found
    folder = private_folder() / PACKAGE
    program = folder / "usr/bin" / PACKAGE
    if not program.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            subprocess.run(
                ["apt-get", "download", "-qq", PACKAGE],
                cwd=folder,
                stderr=subprocess.DEVNULL,
                timeout=120,
                check=True,
            )
            package = next(folder.glob("*.deb"))
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], timeout=60, check=True)
        except (OSError, subprocess.SubprocessError, StopIteration):
            return None
    return str(program)


def measure(program: str) -> Beside:
    """All on one machine in one run, in turn, each scraped at the same rate."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(valkey_server("--maxmemory", "256mb")) for _ in range(SHARDS)]
        for rank, port in enumerate(ports):
            with redis.Redis(port=port) as client:
                for i in range(VALUES):
                    client.set(f"model@{SHARDS}@{rank}@{i:x}@bfloat16", b"x" * VALUE_BYTES)
        theirs = [stack.enter_context(_theirs(program, port)) for port in ports]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(_ours(folder, ports))
        with ThreadPoolExecutor(SHARDS) as pool:
            return _rounds(pool, theirs, ours)


@dataclass(frozen=True, slots=True)
class _Running:
    pid: int
    port: int


def _rounds(pool: ThreadPoolExecutor, theirs: Sequence[_Running], ours: _Running) -> Beside:
    their_ports = [process.port for process in theirs]
    _scrape(pool, their_ports), _scrape(pool, [ours.port])
    time.sleep(3)  # our second tick and later ones are the ones that last
    times: dict[str, list[float]] = {"theirs": [], "ours": [], "again": []}
    began = time.monotonic()
    their_cpu = -sum(_cpu_seconds(process.pid) for process in theirs)
    our_cpu = -_cpu_seconds(ours.pid)
    their_series = our_series = 0
    for number in range(ROUNDS):
        order = ("theirs", "ours", "again")
        for slot in order if number % 2 else reversed(order):
            asked = time.perf_counter()
            series = _scrape(pool, [ours.port] if slot == "ours" else their_ports)
            times[slot].append((time.perf_counter() - asked) * 1e3)
            if slot == "ours":
                our_series = series
            else:
                their_series = series
            time.sleep(BETWEEN_SECONDS)
    return Beside(
        times["theirs"],
        times["ours"],
        times["again"],
        sum(_megabytes(process.pid) for process in theirs),
        _megabytes(ours.pid),
        (their_cpu + sum(_cpu_seconds(process.pid) for process in theirs)) / 2,  # scraped twice
        our_cpu + _cpu_seconds(ours.pid),
        time.monotonic() - began,
        their_series,
        our_series,
    )


def _scrape(pool: ThreadPoolExecutor, ports: Sequence[int]) -> int:
    """All at once, as Prometheus does; the number of series."""
    return sum(pool.map(_scrape_one, ports))


def _scrape_one(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"port {port} answered {answer.status}")
    return sum(bool(line) and not line.startswith(b"#") for line in body.splitlines())


@contextlib.contextmanager
def _theirs(program: str, shard_port: int) -> Iterator[_Running]:
    port = free_port()
    process = subprocess.Popen(
        [
            *(program, "-redis.addr", f"redis://127.0.0.1:{shard_port}"),
            *("-web.listen-address", f"127.0.0.1:{port}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        yield _Running(process.pid, port)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _ours(folder: Path, shard_ports: Sequence[int]) -> Iterator[_Running]:
    pages = [
        Page.create(
            folder,
            {
                "engine_id": "e",
                "roles": ["worker"],
                "rank": rank,
                "world_size": SHARDS,
                "groups": [{"ring": 0, "name": "world", "ranks": list(range(SHARDS))}],
            },
        )
        for rank in range(SHARDS)
    ]
    command = [sys.executable, "-m", "runbooks.cli.main", "exporter", "--from", str(folder)]
    for shard_port in shard_ports:
        command += ["--valkey", f"resp://127.0.0.1:{shard_port}"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = re.search(r":(\d+)/metrics", process.stdout.readline())
        if said is None:
            raise RuntimeError("our exporter did not start")
        port = int(said[1])
        _wait_for(port)
        yield _Running(process.pid, port)
    finally:
        process.kill()
        process.wait()
        for page in pages:
            if page is not None:
                page.close()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            _scrape_one(port)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _megabytes(pid: int) -> float:
    """The most that was resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
