"""The interval for a main thread's saturation: tables of INFO, and servers whose kernel knows."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from pathlib import Path

import pytest
import redis

from exporters.readers.valkey import Shards
from exporters.saturation import (
    SHORTEST_SECONDS,
    SPINNING_TURNS_PER_SECOND,
    WINDOW_SECONDS,
    between,
    recent,
)
from exporters.snapshot import Shard, Snapshot
from tests.patched_engine.resp.real_servers import real_server

WALL = 4.0


def _shards(io_threads=1, clock=True, **spent):
    """Two answers WALL apart; `spent` is what each counter moved by, a dict for a command."""

    def answer(at_seconds, times):
        info = {"run_id": "a", "redis_version": "7.2.4"}
        if clock:
            info["server_time_usec"] = 1_700_000_000_000_000 + int(at_seconds * 1e6)
        for name, moved in spent.items():
            if isinstance(moved, dict):
                info[name] = {key: 100 + value * times for key, value in moved.items()}
            else:
                info[name] = 100 + moved * times
        return Shard("v", True, info=info, read_seconds=at_seconds, io_threads=io_threads)

    return answer(50.0, 0), answer(50.0 + WALL, 1)


CPU = {"used_cpu_user_main_thread": 0.5, "used_cpu_sys_main_thread": 0.7}
LOOP = {"eventloop_duration_sum": 3_600_000}
GET = {"cmdstat_get": {"usec": 2_000_000, "calls": 9}, "cmdstat_set": {"usec": 400_000}}


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        # Valkey 9.1.
        (
            dict(io_threads=1, used_active_time_main_thread=3.2, **LOOP, **CPU, **GET),
            ("active_time", 0.8, 0.8, 0.6),
        ),
        (
            dict(io_threads=4, used_active_time_main_thread=3.2, **LOOP, **CPU, **GET),
            ("active_time_to_eventloop", 0.8, 0.9, 0.6),
        ),
        # Valkey 8.0 to 9.0.
        (dict(io_threads=1, **LOOP, **CPU, **GET), ("eventloop", 0.9, 0.9, 0.6)),
        (
            dict(io_threads=4, **LOOP, **CPU, **GET),
            ("commandstats_to_eventloop", 0.6, 0.9, 0.6),
        ),
        # CONFIG was refused: no knowledge that there are none.
        (
            dict(io_threads=None, **LOOP, **CPU, **GET),
            ("commandstats_to_eventloop", 0.6, 0.9, 0.6),
        ),
        # redis 7.0.
        (dict(io_threads=1, **CPU, **GET), ("main_thread_cpu", 0.3, 0.3, 0.6)),
        # commandstats of a user that may not see them.
        (dict(io_threads=4, **LOOP), ("commandstats_to_eventloop", 0.0, 0.9, None)),
    ],
)
def test_the_basis_follows_what_the_server_can_tell(what, expected):
    found = between(*_shards(**what))
    assert found.basis == expected[0]
    assert (found.lower, found.upper) == pytest.approx(expected[1:3])
    assert found.command_share == (None if expected[3] is None else pytest.approx(expected[3]))
    assert found.wall_seconds == pytest.approx(WALL)


def test_a_loop_that_never_sleeps_has_no_upper_bound():
    spins = {"eventloop_cycles": int(2 * WALL * SPINNING_TURNS_PER_SECOND)}
    with_active = between(*_shards(4, used_active_time_main_thread=2.0, **LOOP, **spins))
    assert (with_active.lower, with_active.upper) == (0.5, 1.0)
    without = between(*_shards(4, **LOOP, **spins, **GET))
    assert (without.lower, without.upper) == pytest.approx((0.6, 1.0))
    alone = between(*_shards(1, **LOOP, **spins))
    assert alone.lower == alone.upper == pytest.approx(0.9)
    slow = {"eventloop_cycles": int(WALL * SPINNING_TURNS_PER_SECOND / 2)}
    assert between(*_shards(4, **LOOP, **slow)).upper == pytest.approx(0.9)


def test_the_commands_of_a_transaction_count_once():
    inner = {"cmdstat_get": {"usec": 400_000, "calls": 1}}
    with_exec = between(*_shards(**LOOP, **inner, cmdstat_exec={"usec": 500_000, "calls": 1}))
    assert with_exec.command_share == between(*_shards(**LOOP, **inner)).command_share == 0.1


def test_bounds_stay_in_order_and_in_their_range():
    over = {"cmdstat_get": {"usec": 9_000_000}}
    found = between(*_shards(io_threads=4, eventloop_duration_sum=1_000_000, **over))
    assert (found.lower, found.upper, found.command_share) == (0.25, 0.25, 1.0)
    assert between(*_shards(used_active_time_main_thread=4.4)).upper == 1.0


@pytest.mark.parametrize("name", ["used_active_time_main_thread", "eventloop_duration_sum"])
def test_counters_that_went_back_say_nothing(name):
    assert between(*_shards(**{name: -50})) is None


def test_another_life_says_nothing():
    before, after = _shards(**LOOP)
    again = dataclasses.replace(after, info={**after.info, "run_id": "b"})
    assert between(before, again) is None
    assert between(Shard("v", False, "timeout"), after) is None
    assert between(before, Shard("v", False, "timeout")) is None


def test_no_figure_at_all_says_nothing():
    assert between(*_shards(**GET)) is None
    assert between(*_shards(eventloop_duration_sum=float("nan"))) is None


def test_the_servers_clock_is_taken_unless_it_was_set():
    before, after = _shards(**LOOP)
    late = dataclasses.replace(after, read_seconds=after.read_seconds + 0.4)  # queued behind others
    assert between(before, late).wall_seconds == pytest.approx(WALL)
    jumped = dataclasses.replace(
        after,
        info={**after.info, "server_time_usec": after.info["server_time_usec"] + 3_600_000_000},
    )
    assert between(before, jumped).wall_seconds == pytest.approx(WALL)
    assert between(*_shards(clock=False, **LOOP)).wall_seconds == pytest.approx(WALL)


def test_the_longest_window_that_one_life_allows():
    def at(seconds, spent):
        info = {"run_id": "a", "used_active_time_main_thread": spent}
        return Shard("v", True, info=info, read_seconds=seconds)

    def picture(shard, earlier=()):
        return Snapshot(shard.read_seconds, 0.0, shards=(shard,), earlier=earlier)

    now = at(100.0, 8.0)
    old = picture(at(100.0 - WINDOW_SECONDS - 1, 0.0))
    reset, since = picture(at(92.0, 50.0)), picture(at(96.0, 5.0))
    found = recent(picture(now, (old, reset, since)), now)
    assert (found.wall_seconds, found.lower) == (4.0, 0.75)
    fresh = picture(at(100.0 - SHORTEST_SECONDS / 2, 7.9))
    assert recent(picture(now, (fresh,)), now) is None
    assert recent(picture(now), now) is None


# --- against the kernel's own account of the main thread

VALUE_BYTES = 12_400_000
HEAVY_CLIENTS = 4


def _kernel_seconds(pid, with_wait):
    """Seconds in which the main thread ran and, if asked for, those in which it was ready to."""
    run_ns, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return (int(run_ns) + int(waited_ns) * with_wait) / 1e9


@contextlib.contextmanager
def _load(port, clients, pause_seconds):
    stop = threading.Event()

    def get():
        buffer = bytearray(1 << 20)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while not stop.wait(pause_seconds):
                connection.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nv\r\n")
                left = len(f"${VALUE_BYTES}\r\n") + VALUE_BYTES + 2
                while left and (count := connection.recv_into(buffer, min(left, len(buffer)))):
                    left -= count

    threads = [threading.Thread(target=get) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _measured(shards, pid, seconds, with_wait=True):
    """What two answers say, and what the kernel says of the same time."""

    def look():
        [shard], unseen = shards.read(shards.begin())
        while time.monotonic() - shard.read_seconds > 0.5:  # the answer is of an earlier question
            [shard], unseen = shards.read(shards.begin())
        assert unseen == []
        return shard, _kernel_seconds(pid, with_wait), time.monotonic()

    first, began, at = look()
    time.sleep(seconds)
    last, ended, until = look()
    return between(first, last), (ended - began) / (until - at)


@pytest.mark.parametrize(
    ("kind", "io_threads", "basis"),
    [
        ("valkey 9.1.2", 1, "active_time"),
        ("valkey 9.1.2", 4, "active_time_to_eventloop"),
        ("valkey 9.0.0", 1, "eventloop"),
        ("valkey 9.0.0", 4, "commandstats_to_eventloop"),
        ("redis 7.0.15", 1, "main_thread_cpu"),
    ],
)
def test_a_real_server_idle_and_loaded(tmp_path, kind, io_threads, basis):
    with real_server(kind, tmp_path, "--io-threads", str(io_threads)) as server:
        with redis.Redis(port=server.port) as client:
            client.set("v", b"x" * VALUE_BYTES)
            pid = client.info("server")["process_id"]
        shards = Shards([server.url])
        idle, _ = _measured(shards, pid, 0.6)
        with _load(server.port, 1, 0.1):
            light, _ = _measured(shards, pid, 0.6)
        with _load(server.port, HEAVY_CLIENTS, 0.0):
            # CPU time lacks the wait for a CPU, which is this machine's doing: held to its own.
            heavy, truth = _measured(shards, pid, 0.9, basis != "main_thread_cpu")
        shards.close()
    assert {idle.basis, light.basis, heavy.basis} == {basis}
    assert idle.lower <= 0.05
    if basis == "commandstats_to_eventloop":
        assert light.upper < heavy.upper
        assert heavy.lower < 0.1  # the copy of a value is in no command there: cannot tell
    else:
        assert idle.upper <= 0.05
        assert idle.lower < light.lower < heavy.lower
    if io_threads > 1:
        assert heavy.lower - 0.05 <= truth <= heavy.upper + 0.05
    else:
        assert heavy.lower == heavy.upper == pytest.approx(truth, abs=0.1)
