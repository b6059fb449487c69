"""One measured process of bench-resp: a client of one server moves its keys, idle or beside a busy
Python thread, and tells when it began, when it ended and what CPU it used."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Literal

VALUE_BYTES = 12_400_000

ClientName = Literal["ours", "pure", "native"]
Face = Literal["async", "sync"]
Operation = Literal["GET", "SET"]
Call = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """One cell of the table, for one client."""

    client: ClientName
    operation: Operation
    threads: int
    busy: bool
    keys: int
    passes: int
    face: Face


@dataclass(frozen=True)
class Figure:
    """What one run of a setting over its servers gave."""

    gigabytes_per_second: float
    cpu_seconds_per_gigabyte: float


def run(setting: Setting, ports: Sequence[int]) -> Figure:
    """One client process a server, started together."""
    context = multiprocessing.get_context("fork")
    start = context.Event()
    children = []
    for port in ports:
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(setting, port, start, theirs), daemon=True)
        child.start()
        children.append((child, ours))
    try:
        for _, pipe in children:
            _receive(pipe, "to connect")
        time.sleep(0.05)
        start.set()
        spans = [_receive(pipe, "to finish") for _, pipe in children]
    finally:
        for child, _ in children:
            child.kill()
            child.join()
    seconds = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
    gigabytes = len(ports) * setting.passes * setting.keys * VALUE_BYTES / 1e9
    return Figure(gigabytes / seconds, sum(cpu for _, _, cpu in spans) / gigabytes)


def _receive(pipe: Any, what: str) -> Any:
    if not pipe.poll(120):
        raise RuntimeError(f"a client process took over 120 s {what}")
    return pipe.recv()


def _child(setting: Setting, port: int, start: Event, pipe: Connection) -> None:
    names = [f"k{index:02d}" for index in range(setting.keys)]
    buffers = [memoryview(bytearray(b"\1") * VALUE_BYTES) for _ in names]
    call = _caller(setting, port, names, buffers)
    call()  # connections made, pages touched
    stop = threading.Event()

    def measured() -> None:
        begin_cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(setting.passes):
            call()
        end = time.perf_counter()
        pipe.send((begin, end, time.process_time() - begin_cpu))
        stop.set()

    driver = threading.Thread(target=measured, daemon=True)
    pipe.send("ready")
    start.wait()
    driver.start()
    if setting.busy:
        count = 0
        while not stop.is_set():
            for _ in range(1000):
                count += 1
    stop.wait()
    time.sleep(60)  # the parent ends this process: no exit handler is part of what is measured
    os._exit(0)


def _caller(setting: Setting, port: int, names: list[str], buffers: list[memoryview]) -> Call:
    """A call that moves every key once, made the way LMCache's connector makes it.

    That is: a coroutine on LMCache's own loop thread, waited for from another thread. Face `sync`
    calls each client's blocking methods instead.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    on_loop = setting.face == "async"
    if setting.client == "native":
        native = asyncio.run_coroutine_threadsafe(_native(port, setting.threads), loop).result()
        blocking, awaited = {
            "GET": (native.batch_get_sync, native.batch_get),
            "SET": (native.batch_set_sync, native.batch_set),
        }[setting.operation]
        if not on_loop:
            return lambda: blocking(names, buffers)
        return lambda: asyncio.run_coroutine_threadsafe(awaited(names, buffers), loop).result()

    from patched_engine.resp import RespClient

    engine = "compiled" if setting.client == "ours" else "pure"
    client = RespClient(f"resp://127.0.0.1:{port}", connections=setting.threads, engine=engine)

    def ours() -> None:
        if on_loop:
            method = client.aget if setting.operation == "GET" else client.aset
            results = asyncio.run_coroutine_threadsafe(method(names, buffers), loop).result()
        else:
            results = (client.get if setting.operation == "GET" else client.set)(names, buffers)
        if bad := [result for result in results if not result.ok]:
            raise RuntimeError(f"{len(bad)} keys failed, the first with {bad[0]}")

    return ours


async def _native(port: int, threads: int) -> Any:
    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    return RESPClient("127.0.0.1", port, threads)
