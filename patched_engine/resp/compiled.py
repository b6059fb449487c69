"""The engine whose threads are C: a busy Python thread costs a batch one wake-up, not many."""

from __future__ import annotations

import array
import contextlib
import ctypes
import itertools
import os
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from patched_engine.resp import build
from patched_engine.resp.connection import Backoff, ConnectError, Open, open_connection
from patched_engine.resp.deadlines import Deadlines, to_ns
from patched_engine.resp.engine import DRAIN_BYTES, WINDOW_BYTES, Batch, EngineClosed
from patched_engine.resp.results import VALUE, KeyResult, result_of
from patched_engine.resp.url import Endpoint

_VERSION: Final = 1
_DETAIL_BYTES: Final = 160
_LOW_WATER_BYTES: Final = 1 << 20
_WAIT_NS: Final = 200_000_000  # so that Ctrl-C is noticed
_DRAIN_ROOM: Final = 64

_PTR, _INT, _U32, _I64, _U64 = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_int64,
    ctypes.c_uint64,
)
# name, result, arguments; first those that may block and so let go of the interpreter lock
_BLOCKING: Final = (
    ("resp_core_wait", _INT, (_PTR, _PTR, _I64)),
    ("resp_core_wanted", _INT, (_PTR,)),
    ("resp_core_stop", None, (_PTR,)),
)
# and those that never do: letting go would mean waiting to get it back from a busy thread
_SHORT: Final = (
    ("resp_core_version", _INT, ()),
    ("resp_core_new", _PTR, (_INT, _U64, _U64, _U64)),
    ("resp_core_lane", _INT, (_PTR,)),
    ("resp_core_lane_fd", _INT, (_PTR, _INT)),
    (
        "resp_core_submit",
        _PTR,
        (_PTR, _INT, _U32, _U32, *(_PTR,) * 6, _I64, _I64, _I64, _INT),
    ),
    ("resp_core_release", None, (_PTR,)),
    ("resp_core_drain", _U32, (_PTR, _INT, _PTR, _U32)),
    ("resp_core_attach", _INT, (_PTR, _INT, _INT)),
    ("resp_core_refuse", None, (_PTR, _INT, ctypes.c_char_p, _I64)),
    ("resp_core_close_fds", None, (_PTR,)),
    ("resp_core_free", None, (_PTR,)),
)


@lru_cache(maxsize=1)
def load() -> tuple[Any, Path]:
    """The core's functions and where it was loaded from. Raises BuildError."""
    path = build.library()
    functions: dict[str, Any] = {}
    try:
        for kind, table in ((ctypes.CDLL, _BLOCKING), (ctypes.PyDLL, _SHORT)):
            library = kind(str(path))
            for name, result, arguments in table:
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                functions[name.removeprefix("resp_core_")] = function
    except (OSError, AttributeError) as error:
        raise build.BuildError(f"{path} does not load: {error}") from None
    if functions["version"]() != _VERSION:
        raise build.BuildError(f"{path} is of another version")
    return type("Core", (), {name: staticmethod(f) for name, f in functions.items()}), path


@dataclass(slots=True)
class _Flight:
    """A submitted batch and all the memory that the core was given."""

    batch: Batch
    memory: tuple[object, ...]
    outcomes: ctypes.Array[ctypes.c_char]
    details: ctypes.Array[ctypes.c_char]


class CompiledEngine:
    """The core's threads, and one Python thread that opens connections when a worker asks."""

    name = "compiled"

    def __init__(
        self,
        endpoint: Endpoint,
        connections: int,
        deadlines: Deadlines,
        *,
        drain_bytes: int = DRAIN_BYTES,
        window_bytes: int = WINDOW_BYTES,
        low_water_bytes: int = _LOW_WATER_BYTES,
        open_socket: Open = open_connection,
    ) -> None:
        self._lib, _ = load()
        self._endpoint = endpoint
        self._deadlines = deadlines
        self._open = open_socket
        self._flights: dict[int, _Flight] = {}
        self._core = self._lib.new(connections, drain_bytes, window_bytes, low_water_bytes)
        if not self._core:
            raise build.BuildError("the core could not start its threads")
        self._connector = threading.Thread(
            target=self._connect, name="stallscope-resp-connect", daemon=True
        )
        self._connector.start()

    def submit(self, batch: Batch, lane: int) -> int:
        count = len(batch.keys)
        keys = b"".join(batch.keys)
        ends = array.array("Q", itertools.accumulate(map(len, batch.keys)))
        held: list[object] = []
        if batch.views:
            sizes = array.array("Q", map(len, batch.views))
            data = array.array("Q", (_address(view, held) for view in batch.views))
        else:
            sizes = data = array.array("Q", bytes(8 * count))
        outcomes = ctypes.create_string_buffer(count + 1)
        details = ctypes.create_string_buffer(count * _DETAIL_BYTES + 1)
        deadlines = batch.deadlines
        ticket = self._lib.submit(
            self._core,
            int(batch.kind),
            count,
            batch.tile_keys,
            keys,
            ends.buffer_info()[0],
            data.buffer_info()[0],
            sizes.buffer_info()[0],
            ctypes.addressof(outcomes),
            ctypes.addressof(details),
            to_ns(deadlines.connect_seconds),
            to_ns(deadlines.operation_seconds),
            to_ns(deadlines.total_seconds),
            lane,
        )
        if not ticket:
            raise EngineClosed
        self._flights[ticket] = _Flight(batch, (keys, ends, sizes, data, held), outcomes, details)
        return int(ticket)

    def wait(self, ticket: int) -> None:
        while not self._lib.wait(self._core, ticket, _WAIT_NS):
            pass

    def open_lane(self) -> tuple[int, int]:
        lane = self._lib.lane(self._core)
        if lane < 0:
            raise RuntimeError("too many event loops use one client, or no descriptor is left")
        return lane, self._lib.lane_fd(self._core, lane)

    def drain(self, lane: int) -> list[int]:
        room = (_PTR * _DRAIN_ROOM)()
        found: list[int] = []
        while count := self._lib.drain(self._core, lane, room, _DRAIN_ROOM):
            found += [ticket for ticket in room[:count] if ticket]
            if count < _DRAIN_ROOM:
                break
        return found

    def take(self, ticket: int) -> list[KeyResult]:
        flight = self._flights.pop(ticket)
        self._lib.release(ticket)
        count = len(flight.batch.keys)
        codes = flight.outcomes.raw[:count]
        if codes == b"\1" * count:
            return [VALUE] * count
        return [
            result_of(code) if code <= 2 else result_of(code, _detail(flight.details, index))
            for index, code in enumerate(codes)
        ]

    def close(self) -> None:
        self._lib.stop(self._core)
        # Without a connect deadline the system's own may hold it for minutes.
        self._connector.join((self._deadlines.connect_seconds or 5.0) + 1.0)

    def free(self) -> None:
        """After `close`, once no thread is in `wait`."""
        if self._connector.is_alive():
            return  # it will look into the core once more, to see that it is to end
        core, self._core = self._core, None
        if core:
            self._lib.free(core)

    def abandon(self) -> None:
        # The locks inside may be held by threads that this process does not have: nothing is freed.
        if self._core:
            self._lib.close_fds(self._core)

    def _connect(self) -> None:
        backoff = Backoff()
        while (index := self._lib.wanted(self._core)) >= 0:
            try:
                sock = self._open(self._endpoint, self._deadlines.connect_seconds)
            except Exception as error:  # whatever it is, the worker must hear of it
                text = str(error) if isinstance(error, ConnectError) else repr(error)
                pause_ns = to_ns(backoff.failure_pause_seconds())
                self._lib.refuse(self._core, index, text.encode()[: _DETAIL_BYTES - 1], pause_ns)
                continue
            backoff.success()
            sock.setblocking(True)
            descriptor = sock.detach()
            if not self._lib.attach(self._core, index, descriptor):
                with contextlib.suppress(OSError):
                    os.close(descriptor)


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer (stable ABI since 3.11): the way to a read-only buffer's address."""

    _fields_ = (
        ("buf", _PTR),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", _INT),
        ("ndim", _INT),
        ("format", ctypes.c_char_p),
        ("shape", _PTR),
        ("strides", _PTR),
        ("suboffsets", _PTR),
        ("internal", _PTR),
    )


def _address(view: memoryview, held: list[object]) -> int:
    """Where the bytes are; `held` gets what keeps them there."""
    if not len(view):
        return 0
    if not view.readonly:
        first = ctypes.c_char.from_buffer(view)
        held.append(first)
        return ctypes.addressof(first)
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = int(buffer.buf)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    held.append(view)  # a memoryview keeps its object's bytes in place for as long as it lives
    return address


def _detail(details: ctypes.Array[ctypes.c_char], index: int) -> str:
    start = index * _DETAIL_BYTES
    raw = details.raw[start : start + _DETAIL_BYTES]
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
