"""Every test of the client runs on both engines; none may leave a thread or a descriptor behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from patched_engine.resp import BuildError, RespClient
from patched_engine.resp.choose import status

MakeClient = Callable[..., RespClient]


@pytest.fixture(params=["compiled", "pure"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        status(name)
    except BuildError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture
def make_client(engine: str) -> Iterator[MakeClient]:
    """Clients of one engine, closed at the end."""
    made: list[RespClient] = []

    def make(url: str, connections: int = 1, **options: Any) -> RespClient:
        client = RespClient(url, connections=connections, engine=engine, **options)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def threads_and_descriptors() -> tuple[int, int]:
    """Threads of the process (those of C too) and its open descriptors."""
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def more_than(before: tuple[int, int]) -> bool:
    threads, descriptors = threads_and_descriptors()
    return threads > before[0] or descriptors > before[1]


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    if "libtsan" in os.environ.get("LD_PRELOAD", ""):
        yield  # the sanitizer starts a thread of its own when it likes
        return
    before = threads_and_descriptors()
    yield
    deadline = time.monotonic() + 5
    while more_than(before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not more_than(before), [thread.name for thread in threading.enumerate()]
