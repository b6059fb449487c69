"""The client's faces: order, arguments, closing, forking, cancelling, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from patched_engine.resp import Deadlines, Kind, Outcome, RespClient
from patched_engine.resp.engine import Engine
from tests.patched_engine.resp.conftest import MakeClient, more_than, threads_and_descriptors
from tests.patched_engine.resp.fake_server import Peer, bulk, fake_server
from tests.patched_engine.resp.real_servers import real_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_server("valkey 9.1.2", tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


def stall(peer: Peer) -> None:
    peer.command()
    peer.until_gone()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 65, 1000])
@pytest.mark.parametrize("connections", [1, 3, 32])
def test_results_come_in_the_order_of_the_keys(
    make_client: MakeClient, url: str, count: int, connections: int
) -> None:
    client = make_client(url, connections=connections)
    keys = [f"{count}.{connections}.{i}" for i in range(count)]
    values = [f"{i:09}".encode() for i in range(count)]
    stored = [i for i in range(count) if i % 3]
    client.set([keys[i] for i in stored], [values[i] for i in stored])
    buffers = [bytearray(9) for _ in keys]
    results = client.get(keys, buffers)
    assert [r.ok for r in results] == [bool(i % 3) for i in range(count)]
    assert all(bytes(buffers[i]) == values[i] for i in stored)
    assert [r.ok for r in client.exists(keys)] == [bool(i % 3) for i in range(count)]


def test_any_buffer_can_be_given(make_client: MakeClient, url: str) -> None:
    import array

    client = make_client(url)
    whole = bytearray(b"0123456789")
    for source in (b"0123456789", whole, memoryview(whole), memoryview(b"0123456789")):
        assert client.set([b"\x00any\r\n"], [source])[0].ok
        into = array.array("H", [0] * 5)
        assert client.get([b"\x00any\r\n"], [memoryview(into)])[0].ok
        assert into.tobytes() == whole
    part = bytearray(20)
    assert client.get([b"\x00any\r\n"], [memoryview(part)[5:15]])[0].ok
    assert part == b"\0" * 5 + whole + b"\0" * 5


@pytest.mark.parametrize(
    ("keys", "buffers", "words"),
    [
        (["a"], [], "1 keys and 0 buffers"),
        (["a"], [b"read-only"], "read-only"),
        ([""], [bytearray(1)], "a key of 0 bytes"),
        (["k" * 65_537], [bytearray(1)], "a key of 65537 bytes"),
        ("abc", [bytearray(1)] * 3, "one string"),
        (["a"], [memoryview(bytearray(10))[::2]], "not contiguous"),
    ],
)
def test_wrong_arguments_are_said_in_one_line(
    make_client: MakeClient, url: str, keys: list[str], buffers: list[bytearray], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        make_client(url).get(keys, buffers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("connections", [0, -1, 1025])
def test_an_impossible_number_of_connections(connections: int) -> None:
    with pytest.raises(ValueError, match="give 1 to 1024"):
        RespClient("resp://localhost:1", connections=connections)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_deadline_that_is_none(seconds: float) -> None:
    with pytest.raises(ValueError, match="operation_seconds"):
        Deadlines(operation_seconds=seconds)


class Interleaved:
    """An engine whose completions are drained, if they can be, before `submit` has returned."""

    def __init__(self, engine: Engine, drained: threading.Event) -> None:
        self._engine = engine
        self._drained = drained

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def submit(self, batch: object, lane: int) -> int:
        self._drained.clear()
        ticket = self._engine.submit(batch, lane)  # type: ignore[arg-type]
        # The bad interleaving of LMCache #5547: here the drain must wait, and the event times out.
        self._drained.wait(0.2)
        return ticket


class NoLock:
    """What the client would be without its lock."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("locked", [True, False])
def test_a_completion_cannot_come_before_its_future(
    make_client: MakeClient, url: str, locked: bool
) -> None:
    client = make_client(url)
    assert client.submit(Kind.EXISTS, ["warm"]).result(5)
    drained = threading.Event()
    original, lost = client._drain, []

    def drain(lane: int) -> None:
        try:
            original(lane)
        except KeyError as error:
            lost.append(error)
        drained.set()

    client._lanes._drain = drain
    client._engine = Interleaved(client._engine, drained)  # type: ignore[assignment]
    if not locked:
        client._lock = NoLock()  # type: ignore[assignment]
    future = client.submit(Kind.EXISTS, ["absent"])
    if locked:
        assert [r.outcome for r in future.result(5)] == [Outcome.MISS]
        assert lost == []
    else:
        with pytest.raises(TimeoutError):  # so the test can tell: without the lock it is lost
            future.result(1)
        assert len(lost) == 1
        client._lock = threading.Lock()


def test_every_face_from_many_threads_and_loops(make_client: MakeClient, url: str) -> None:
    client = make_client(url, connections=4)
    assert client.set(["face"], [b"value"])[0].ok
    failures: list[object] = []

    def blocking() -> None:
        for _ in range(100):
            buffer = bytearray(5)
            if not (client.get(["face"], [buffer])[0].ok and buffer == b"value"):
                failures.append(buffer)

    def futures() -> None:
        pending = [client.submit(Kind.EXISTS, ["face", "no"]) for _ in range(100)]
        failures.extend(f for f in pending if [r.ok for r in f.result(10)] != [True, False])

    def loops() -> None:
        async def many() -> list[list[bool]]:
            found = await asyncio.gather(*(client.aexists(["face", "no"]) for _ in range(50)))
            return [[r.ok for r in results] for results in found]

        for _ in range(3):  # each run has a loop of its own
            failures.extend(r for r in asyncio.run(many()) if r != [True, False])

    threads = [threading.Thread(target=t) for t in (blocking, futures, loops) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert failures == []


def test_a_loop_closed_with_an_await_in_flight_costs_the_next_loop_nothing(
    make_client: MakeClient,
) -> None:
    released = threading.Event()

    def script(peer: Peer) -> None:
        while True:
            if peer.command()[1] == b"slow":
                released.wait(5)
            peer.send(b":1\r\n")

    with fake_server(script) as server:
        client = make_client(server.url, connections=2)
        first = asyncio.new_event_loop()
        task = first.create_task(client.aexists(["slow"]))
        first.run_until_complete(asyncio.sleep(0.1))
        first.close()

        async def again() -> list[bool]:
            asking = [asyncio.ensure_future(client.aexists([f"k{i}"])) for i in range(20)]
            await asyncio.sleep(0)
            released.set()
            return [(await one)[0].ok for one in asking]

        assert asyncio.run(again()) == [True] * 20
        assert not client._pending
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_deadlines_of_one_call(make_client: MakeClient) -> None:
    with fake_server(stall) as server:
        client = make_client(server.url)
        begin = time.monotonic()
        (result,) = client.call(Kind.EXISTS, ["k"], deadlines=Deadlines(1, 0.2, 1))
        assert result.outcome is Outcome.DEADLINE
        assert time.monotonic() - begin < 1


def test_a_cancelled_await_ends_when_its_buffer_is_no_longer_touched(
    make_client: MakeClient,
) -> None:
    released = threading.Event()

    def script(peer: Peer) -> None:
        peer.command()
        peer.send(b"$8\r\nfour")
        released.wait(5)
        peer.send(b"more\r\n")

    with fake_server(script) as server:
        client = make_client(server.url)
        buffer = bytearray(8)

        async def cancel() -> float:
            task = asyncio.ensure_future(client.aget(["k"], [buffer]))
            await asyncio.sleep(0.1)
            task.cancel()
            begin = time.monotonic()
            asyncio.get_running_loop().call_later(0.3, released.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - begin

        assert asyncio.run(cancel()) > 0.25
        assert buffer == b"fourmore"


def test_a_future_cannot_be_cancelled_under_its_bytes(make_client: MakeClient) -> None:
    with fake_server(stall) as server:
        client = make_client(server.url, deadlines=Deadlines(1, 0.3, 1))
        future = client.submit(Kind.GET, ["k"], [bytearray(8)])
        assert not future.cancel()
        assert future.result(5)[0].outcome is Outcome.DEADLINE


class Buffer(bytearray):
    """A bytearray that can be watched."""


def test_buffers_live_as_long_as_the_operation_and_no_longer(make_client: MakeClient) -> None:
    released = threading.Event()

    def script(peer: Peer) -> None:
        peer.command()
        released.wait(5)
        peer.send(bulk(b"12345678"))
        peer.until_gone()

    with fake_server(script) as server:
        client = make_client(server.url)
        buffer = Buffer(8)
        watched = weakref.ref(buffer)
        future = client.submit(Kind.GET, ["k"], [buffer])
        del buffer
        gc.collect()
        assert watched() is not None
        released.set()
        assert future.result(5)[0].ok
        deadline = time.monotonic() + 5
        while watched() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert watched() is None


@pytest.mark.usefixtures("nothing_leaks")
def test_ctrl_c_ends_a_blocking_call_once_its_buffer_is_free(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        while True:
            if peer.command()[1] == b"stall":
                peer.until_gone()
                return
            peer.send(b":1\r\n")

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=Deadlines(1, 0.6, 2))
        interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            client.get(["stall"], [bytearray(8)])
        assert 0.5 < time.monotonic() - begin < 1.5
        assert not client._pending
        assert client.exists(["after"])[0].ok


@pytest.mark.usefixtures("nothing_leaks")
def test_closing_ends_what_is_in_flight_and_leaves_nothing(make_client: MakeClient) -> None:
    with fake_server(stall) as server:
        client = make_client(server.url, connections=3)
        futures = [client.submit(Kind.EXISTS, [f"k{i}"]) for i in range(9)]
        waiting: list[object] = []
        thread = threading.Thread(target=lambda: waiting.extend(client.exists(["sync"])))
        thread.start()
        time.sleep(0.2)
        begin = time.monotonic()
        client.close()
        assert time.monotonic() - begin < 1
        thread.join(5)
        results = [future.result(0)[0] for future in futures] + waiting
        assert {result.outcome for result in results} == {Outcome.CLOSED}  # type: ignore[attr-defined]
        assert client.exists(["late"])[0].outcome is Outcome.CLOSED
        assert client.submit(Kind.EXISTS, ["late"]).result(1)[0].outcome is Outcome.CLOSED
        client.close()


@pytest.mark.usefixtures("nothing_leaks")
def test_closing_from_a_futures_callback(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        peer.command()
        peer.send(b":1\r\n")
        stall(peer)

    with fake_server(script) as server:
        client = make_client(server.url)
        closed = threading.Event()

        def close(_: object) -> None:
            client.close()
            closed.set()

        first = client.submit(Kind.EXISTS, ["a"])
        second = client.submit(Kind.EXISTS, ["b"])
        first.add_done_callback(close)
        assert second.result(5)[0].outcome is Outcome.CLOSED
        assert closed.wait(5)


@pytest.mark.usefixtures("nothing_leaks")
def test_closing_on_a_running_loop(make_client: MakeClient) -> None:
    with fake_server(stall) as server:
        client = make_client(server.url)

        async def run() -> Outcome:
            task = asyncio.ensure_future(client.aexists(["k"]))
            await asyncio.sleep(0.1)
            client.close()
            return (await task)[0].outcome

        assert asyncio.run(run()) is Outcome.CLOSED


@pytest.mark.usefixtures("nothing_leaks")
def test_two_hundred_clients_one_after_another(engine: str, url: str) -> None:
    before = threads_and_descriptors()
    for index in range(200):
        with RespClient(url, connections=2, engine=engine) as client:
            assert client.exists(["a", "b"])[0].is_miss
            if index % 10 == 0:
                assert client.submit(Kind.EXISTS, ["a"]).result(5)[0].is_miss
                assert asyncio.run(client.aexists(["a"]))[0].is_miss
    assert not more_than(before)


def sockets() -> set[str]:
    """The sockets this process holds, by inode."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in found if link.startswith("socket:")}


def test_a_forked_child_does_not_hold_the_parents_connections(
    make_client: MakeClient, url: str
) -> None:
    before = sockets()
    client = make_client(url, connections=3)
    assert client.exists(["a", "b", "c"])
    held = sockets() - before
    assert held
    child = os.fork()
    if child == 0:
        os._exit(len(sockets() & held))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held <= sockets()


def _child(client: RespClient, pipe: Connection) -> None:
    buffer = bytearray(6)
    pipe.send((client.get(["forked"], [buffer])[0].outcome.name, bytes(buffer)))
    pipe.send(client.submit(Kind.EXISTS, ["forked"]).result(5)[0].outcome.name)
    client.close()


def test_a_forked_child_has_connections_of_its_own(make_client: MakeClient, url: str) -> None:
    client = make_client(url, connections=2)
    assert client.set(["forked"], [b"parent"])[0].ok
    assert client.submit(Kind.EXISTS, ["forked"]).result(5)[0].ok
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(client, theirs))
        child.start()
        try:
            assert ours.poll(10)
            assert ours.recv() == ("VALUE", b"parent")
            assert ours.recv() == "VALUE"
            child.join(10)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join()
        buffer = bytearray(6)
        assert client.get(["forked"], [buffer])[0].ok
        assert buffer == b"parent"


def test_forked_while_a_call_is_in_flight(make_client: MakeClient, tmp_path: Path) -> None:
    with real_server("valkey 9.1.2", tmp_path) as server:
        client = make_client(server.url, connections=2)
        assert client.set(["forked"], [b"parent"])[0].ok
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                client.exists(["forked"] * 20)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            context = multiprocessing.get_context("fork")
            for _ in range(5):
                ours, theirs = context.Pipe()
                child = context.Process(target=_child, args=(client, theirs))
                child.start()
                try:
                    assert ours.poll(10), "the child hangs"
                    assert ours.recv() == ("VALUE", b"parent")
                finally:
                    child.kill()
                    child.join()
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)
        assert client.exists(["forked"])[0].ok
