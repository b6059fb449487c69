"""Settings and moments of an engine's life: `python -m ...lifecycle JSON`, one object of ports.

Each trial has an engine of its own; what they print is held against the issue by the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from tests.patched_engine.patches import engine as e

FORK_SECONDS = 5.0


def prompt(number: int) -> tuple[list[int], Any]:
    import torch

    tokens = [number * 100_000 + i for i in range(e.LENGTH)]
    generator = torch.Generator().manual_seed(number)
    kv = torch.randn(e.LAYERS, e.LENGTH, e.HEAD_SIZE, generator=generator).to(torch.bfloat16)
    return tokens, kv


def put(engine: Any, tokens: list[int], kv: Any) -> None:
    """Store a prompt and forget it in L1 once the server has it, or the store was given up."""
    engine.store(tokens, kvcaches=kv)
    deadline = time.monotonic() + 5
    while e.l2(engine).put_tasks and time.monotonic() < deadline:
        time.sleep(0.005)
    engine.storage_manager.clear(["LocalCPUBackend"])


def round_trip(engine: Any, number: int = 1) -> dict[str, Any]:
    """What comes back from L2 of a prompt that was stored there."""
    tokens, kv = prompt(number)
    put(engine, tokens, kv)
    found = int(engine.lookup(tokens=tokens, lookup_id=f"lookup-{number}"))
    engine.lookup_unpin(f"lookup-{number}")
    return {"found": found, **e.retrieve(engine, tokens, kv, f"load-{number}")}


def refused(url: str, **more: Any) -> str:
    """The line that ends the start; "" where it does not end."""
    from patched_engine.resp import EndpointError

    try:
        e.build(url, name=f"refused-{time.monotonic_ns()}", **more)
    except EndpointError as error:
        return str(error)
    return ""


def settings(ports: dict[str, Any]) -> dict[str, Any]:
    url = f"resp://127.0.0.1:{ports['plain']}"
    lines = {
        "unfull": refused(url, settings={"save_unfull_chunk": True}),
        "meta": refused(url, extra={"save_chunk_meta": True}),
        "serde": refused(url, settings={"remote_serde": "cachegen"}),
        "threads": refused(url, extra={"resp_num_threads": "many"}),
        "no threads": refused(url, extra={"resp_num_threads": 0}),
        "option": refused(f"{url}?dba=1"),
        "ca": refused(f"resps://127.0.0.1:{ports['plain']}?ca=/no/such.pem"),
        "host": refused("resp://"),
    }
    engine, _ = e.build(url, name="bare", extra={"save_chunk_meta": None}, rank=1)
    return {"lines": lines, "bare": round_trip(engine)}


def other_scheme(ports: dict[str, Any]) -> dict[str, Any]:
    """A scheme that nobody knows is upstream's to answer: it runs on without L2."""
    engine, _ = e.build("nobody://127.0.0.1:1", name="other")
    return {"l2": type(e.l2(engine)).__name__, "connection": e.l2(engine).connection is not None}


def tls(ports: dict[str, Any]) -> dict[str, Any]:
    engine, _ = e.build(f"resps://127.0.0.1:{ports['tls']}?ca={ports['ca']}", name="tls")
    untrusted, _ = e.build(f"resps://127.0.0.1:{ports['tls']}", name="untrusted")
    return {"trusted": round_trip(engine), "untrusted": round_trip(untrusted)}


def authenticated(ports: dict[str, Any]) -> dict[str, Any]:
    url = f"resp://127.0.0.1:{ports['auth']}"
    found = {}
    engine, _ = e.build(url, name="extra", extra={"username": "default", "password": "secret"})
    found["extra"] = round_trip(engine)
    os.environ["LMCACHE_RESP_PASSWORD"] = "secret"
    engine, _ = e.build(url, name="environment")
    found["environment"] = round_trip(engine, 2)
    os.environ["LMCACHE_RESP_PASSWORD"] = "wrong"
    engine, _ = e.build(url, name="wrong")
    found["wrong"] = round_trip(engine, 3)
    del os.environ["LMCACHE_RESP_PASSWORD"]
    return found


def forked(ports: dict[str, Any]) -> dict[str, Any]:
    """A child that is forked from a running engine asks on connections of its own."""
    engine, _ = e.build(f"resp://127.0.0.1:{ports['plain']}", name="forked")
    tokens, kv = prompt(4)
    put(engine, tokens, kv)
    keys = e.keys_of(engine, tokens)
    e.l2(engine).batched_contains(keys)  # its connections are there
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        found = -1
        with contextlib.suppress(BaseException):
            found = e.l2(engine).batched_contains(keys)
        os.write(writer, str(found).encode())
        os._exit(0)
    os.close(writer)
    parent = [e.l2(engine).batched_contains(keys) for _ in range(50)]
    with os.fdopen(reader) as pipe:
        child = pipe.read()
    os.waitpid(pid, 0)
    return {"child": int(child), "parent": sorted(set(parent)), **round_trip(engine, 5)}


def closed_during_loads(ports: dict[str, Any]) -> dict[str, Any]:
    """Loads and lookups go on in two threads while L2 is closed, and made again, many times."""
    engine, _ = e.build(f"resp://127.0.0.1:{ports['plain']}", name="closed")
    tokens, kv = prompt(6)
    put(engine, tokens, kv)
    stop = threading.Event()
    wrong: list[str] = []
    done = [0, 0]

    def load() -> None:
        keys = e.keys_of(engine, tokens)
        backend = e.l2(engine)
        while not stop.is_set():
            for memory_obj in backend.batched_get_blocking(keys):
                if memory_obj is not None:
                    memory_obj.ref_count_down()
            done[0] += 1

    def look_up() -> None:
        keys = e.keys_of(engine, tokens)
        backend = e.l2(engine)
        while not stop.is_set():
            backend.batched_contains(keys)  # a part of them, where it is closed in between
            done[1] += 1

    def guarded(loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(loop,)) for loop in (load, look_up)]
    for thread in threads:
        thread.start()
    backend = e.l2(engine)
    for _ in range(30):
        time.sleep(0.01)
        backend.close()
        backend.init_connection()
    stop.set()
    for thread in threads:
        thread.join(10)
    left = e.l1(engine).memory_allocator.pin_allocator.total_allocated_size
    hang = [thread.name for thread in threads if thread.is_alive()]
    return {"wrong": wrong, "hang": hang, "done": min(done), "left_bytes": left}


def closed_engine(ports: dict[str, Any]) -> dict[str, Any]:
    """The whole engine is closed while stores are on their way; then nothing of ours is left."""
    from lmcache.v1.cache_engine import LMCacheEngineBuilder

    engine, _ = e.build(f"resp://127.0.0.1:{ports['plain']}", name="ending")
    for number in range(10, 14):
        tokens, kv = prompt(number)
        engine.store(tokens, kvcaches=kv)
    begun = time.monotonic()
    LMCacheEngineBuilder.destroy("ending")
    return {"seconds": time.monotonic() - begun, "tasks": len(e.l2(engine).put_tasks)}


def two_engines(ports: dict[str, Any]) -> dict[str, Any]:
    """Each speaks with its own server, though both have the same keys."""
    first, _ = e.build(f"resp://127.0.0.1:{ports['plain']}", name="first")
    second, _ = e.build(f"resp://127.0.0.1:{ports['second']}", name="second")
    tokens, kv = prompt(7)
    other = kv + 1
    put(first, tokens, kv)
    put(second, tokens, other)
    return {
        "first": e.retrieve(first, tokens, kv, "first"),
        "second": e.retrieve(second, tokens, other, "second"),
    }


def made_again(ports: dict[str, Any]) -> dict[str, Any]:
    """StorageManager closes L2, makes it, and makes it again for another server."""
    engine, _ = e.build(f"resp://127.0.0.1:{ports['plain']}", name="again")
    manager = engine.storage_manager
    found: dict[str, Any] = {"before": round_trip(engine, 8)}
    found["recreated"] = manager.recreate_backend("RemoteBackend")
    found["after"] = round_trip(engine, 8)
    manager.close_backend("RemoteBackend")
    tokens, kv = prompt(8)
    manager.clear(["LocalCPUBackend"])
    found["without"] = e.retrieve(engine, tokens, kv, "without")
    engine.config.remote_url = f"resp://127.0.0.1:{ports['second']}"
    found["created"] = manager.create_backends()
    found["elsewhere"] = round_trip(engine, 9)
    with redis.Redis(port=ports["second"]) as server:
        names = [key.to_string() for key in e.keys_of(engine, prompt(9)[0])]
        found["there"] = server.exists(*names)
    return found


def health(ports: dict[str, Any]) -> dict[str, Any]:
    """LMCache's own check: misses are no fault, a server that is gone is, and one that is back is
    found again."""
    from lmcache.v1.health_monitor.checks.remote_backend_check import RemoteBackendHealthCheck

    extra = {"get_blocking_failed_threshold": 3, "waiting_time_for_recovery": 0.1}
    engine, _ = e.build(f"resp://127.0.0.1:{ports['health']}", name="health", extra=extra)
    check = RemoteBackendHealthCheck(e.l2(engine))
    keys = e.keys_of(engine, prompt(20)[0])
    found: dict[str, Any] = {"at first": check.check()}

    def load() -> None:
        for _ in range(5):
            e.l2(engine).batched_get_blocking(keys)

    load()
    found["after misses"] = check.check()
    with redis.Redis(port=ports["health"]) as server:
        server.config_set("requirepass", "x")
        server.client_kill_filter(_type="normal", skipme=True)
        load()
        found["refused"] = check.check()
        time.sleep(0.2)
        found["still refused"] = check.check()
        server.config_set("requirepass", "")
        time.sleep(1.2)
        found["back"] = check.check()
    return found


TRIALS = {
    "settings": settings,
    "other-scheme": other_scheme,
    "tls": tls,
    "auth": authenticated,
    "forked": forked,
    "closed-during-loads": closed_during_loads,
    "closed-engine": closed_engine,
    "two-engines": two_engines,
    "made-again": made_again,
    "health": health,
}


def main(arguments: list[str]) -> dict[str, Any]:
    ports = json.loads(arguments[0])
    return {name: TRIALS[name](ports) for name in arguments[1:] or TRIALS}


if __name__ == "__main__":
    e.run(main, stuck_seconds=e.BUSY_SECONDS)
