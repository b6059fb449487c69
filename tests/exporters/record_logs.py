"""Has the real LMCache log what it logs at each fault, as it dresses it.

    python -m tests.exporters.record_logs tests/exporters/logs/lmcache-RELEASE.log

Each fault is done to the real object that logs it. `EXPECTED` counts what must then be found. For
another release than the installed one, that one comes first on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

EXPECTED = {
    "degraded": 2,
    "recovered": 1,
    "double_free": 1,
    "double_unpin": 1,
    "invalidated": 1,
    "pin_expired": 1,
    "lookup_timeout": 2,
    "remote_timeout": 2,
    "remote_lost": 1,
    "load_failed": 1,
}


def start() -> None:
    # Its web interface needs a package of vLLM's, and is no part of this.
    name = "lmcache.v1.internal_api_server.api_server"
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].InternalAPIServer = object  # type: ignore[attr-defined]
    from lmcache.v1.manager import LMCacheManager

    class Factory:
        def get_or_create_metadata(self):
            raise RuntimeError("no such shard")

    LMCacheManager(SimpleNamespace(), Factory())


def health() -> None:
    from lmcache.v1.health_monitor.base import HealthMonitor

    monitor = HealthMonitor.__new__(HealthMonitor)
    monitor._healthy, monitor._health_lock = True, threading.Lock()
    monitor._set_healthy(False)
    monitor._set_healthy(True)


def memory() -> None:
    import torch
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.pin_monitor import PinMonitor

    try:
        from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
    except ImportError:
        from lmcache.v1.memory_management import TensorMemoryAllocator

    allocator = TensorMemoryAllocator(torch.zeros(1 << 20, dtype=torch.uint8))
    first, second = (
        allocator.allocate(torch.Size([2, 1, 16, 8]), torch.float32, MemoryFormat.KV_2LTD)
        for _ in range(2)
    )
    first.parent_allocator = second.parent_allocator = allocator
    second.meta.pin_count = 0
    second.unpin()
    monitor = PinMonitor.__new__(PinMonitor)
    pinned = SimpleNamespace(meta=SimpleNamespace(pin_count=1, address=4096), unpin=lambda: None)
    pinned.unpin = lambda: setattr(pinned.meta, "pin_count", 0)
    monitor._force_unpin_timeout_object(pinned, 301.5)
    first.ref_count_down()
    first.ref_count_down()
    _ = first.tensor


def lookups() -> None:
    import zmq
    from lmcache.v1.lookup_client.lmcache_async_lookup_client import LMCacheAsyncLookupClient
    from lmcache.v1.rpc import zmq_transport

    client = LMCacheAsyncLookupClient.__new__(LMCacheAsyncLookupClient)
    client._cleanup_finished_aborted_lookups = lambda: None
    client.cancel_lookup = lambda lookup_id: None
    client.lock, client.lookup_backoff_time = threading.Lock(), 0.001
    client.reqs_status = {"cmpl-7": None}
    client.first_lookup_time = {"cmpl-7": time.time() - 4}
    client.config = SimpleNamespace(lookup_timeout_ms=3000)
    client.lookup_cache("cmpl-7")

    kind = zmq_transport.ZmqReqRepClientTransport
    transport = kind.__new__(kind)
    again = SimpleNamespace(
        send_multipart=lambda *_, **__: None, recv=lambda: (_ for _ in ()).throw(zmq.Again())
    )
    transport._world_size, transport.sockets = 1, [again]
    transport.encoder = SimpleNamespace(encode=lambda item: b"")
    transport._recreate_all_sockets = lambda: None
    transport.send_and_recv_all([b"x"])


def remote() -> None:
    from lmcache.v1.storage_backend.remote_backend import RemoteBackend

    async def never(*_):
        await asyncio.sleep(60)

    async def broken(*_):
        raise ConnectionResetError("Connection reset by peer")

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backend = RemoteBackend.__new__(RemoteBackend)
    backend.loop, backend._mla_worker_id_as0_mode = loop, False
    backend.local_cpu_backend = object()
    backend.config = SimpleNamespace(blocking_timeout_secs=0.05, extra_config=None)
    backend.stats_monitor = SimpleNamespace(
        update_interval_remote_time_to_get_sync=lambda milliseconds: None
    )
    backend._get_blocking_failed_count = 0
    backend.connection = SimpleNamespace(
        get=never,
        batched_async_contains=never,
        support_batched_async_contains=lambda: True,
        support_batched_contains=lambda: False,
        exists=broken,
    )
    backend.get_blocking("key")
    asyncio.run_coroutine_threadsafe(backend.batched_async_contains("a", []), loop).result(10)
    backend.contains("key")


def load() -> None:
    import torch

    # The adapter reads vLLM's names as it is imported; none is used by what is called here.
    class Anything(types.ModuleType):
        __path__ = ()
        __version__ = "0.32.0"

        def __getattr__(self, name):
            return type(name, (), {})

    class Finder:
        def find_spec(self, name, path=None, target=None):
            return ModuleSpec(name, self) if name.partition(".")[0] == "vllm" else None

        def create_module(self, spec):
            return Anything(spec.name)

        def exec_module(self, module):
            return None

    sys.meta_path.insert(0, Finder())
    from lmcache.integration.vllm.vllm_v1_adapter import LMCacheConnectorV1Impl

    adapter = LMCacheConnectorV1Impl.__new__(LMCacheConnectorV1Impl)
    adapter._block_size = 16
    mask = torch.ones(256, dtype=torch.bool)
    adapter.record_failed_blocks("cmpl-7", mask, ~mask, torch.arange(256))


def record() -> str:
    """What a process of its own logs, without the paths of this machine in tracebacks."""
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name],
        env={**os.environ, "LMCACHE_TRACK_USAGE": "false"},
        capture_output=True,
        text=True,
        check=True,
    )
    return re.sub(r'File "/\S*?((?:lmcache/|tests/)[^"]*)"', r'File "\1"', done.stderr)


if __name__ == "__main__":
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(record())
    else:
        for fault in (start, health, memory, lookups, remote, load):
            fault()
