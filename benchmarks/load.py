"""Loading a prefix onto every rank: stock, the post's way, ours, and the limits of the hardware.

    python -m benchmarks.load [--ranks 2] [--device cpu|cuda] [--share-gpu]

Every rank is a process. The clock runs from the call until the last token is in the paged KV on the
slowest rank. Contenders take turns within each round; `ours` is the code that `retrieve` calls.

- stock: rank 0 reads all; an object broadcast and a tensor broadcast a chunk.
- post: one exchange, then a broadcast a chunk from its owner; `post overlapped`: its copies to the
  device begin ahead, on a stream of their own (on a host there is nothing to overlap).
- ours: one exchange, rounds of one in-place all-gather each, one exchange.
- copies: host to device of one rank's share, all ranks at once. rounds: the all-gathers alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.report import QUICK, Bar, Report

CHUNK_COUNTS: Final = (16, 64) if QUICK else (16, 64, 256, 800)
ROUNDS: Final = 3 if QUICK else 7
CHUNK_TOKENS: Final = 256
LAYERS: Final = 42
HEAD_SIZE: Final = 576
HOST_LAYERS: Final = 4  # a tenth of the post's chunk: hosts copy no faster, and have less memory
WITHIN_LIMIT: Final = 1.25
FASTER_THAN_POST: Final = 2.0
FASTER_THAN_OVERLAPPED: Final = 1.2
CONTENDERS: Final = ("stock", "post", "post overlapped", "ours", "copies", "rounds")


def main() -> int:
    """Start the ranks, gather their medians, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2, help="processes, one GPU each (2)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=_default_device())
    parser.add_argument(
        "--share-gpu",
        action="store_true",
        help="all ranks on one GPU, joined by gloo: shows that the bytes are right, not a speed",
    )
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank >= 0:
        _rank(arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.load", "--ranks", str(arguments.ranks)]
        command += ["--device", arguments.device, "--folder", folder]
        command += ["--share-gpu"] * arguments.share_gpu + ["--rank"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen([*command, str(rank)], env=environment)
            for rank in range(arguments.ranks)
        ]
        if any([rank.wait() for rank in ranks]):
            print("bench-load: a rank failed; its words are above", file=sys.stderr)
            return 70
        found = [
            json.loads((Path(folder) / f"{rank}.json").read_text())
            for rank in range(arguments.ranks)
        ]
    return _report(found, arguments.device, arguments.share_gpu).finish()


def _default_device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.device_count() > 1 else "cpu"


class _Chunk:
    """A chunk in host memory, as `bytes_of` takes it."""

    def __init__(self, data: Any) -> None:
        self.raw_tensor = data

    def get_size(self) -> int:
        return int(self.raw_tensor.numel())


class _Connector:
    """Scatters chunks into a paged KV: [layers, slots, head] with the pages of a used pool."""

    def __init__(self, load_stream: Any) -> None:
        if load_stream is not None:
            self.load_stream = load_stream

    def batched_to_gpu(
        self, memory_objs: Any, starts: Any, ends: Any, kvcaches: Any, slots: Any
    ) -> None:
        import contextlib

        import torch

        stream = getattr(self, "load_stream", None)
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                kvcaches.index_copy_(1, slots[start:end], memory_obj.tensor[0])
        if stream is not None:
            stream.synchronize()


class _Bench:
    """One rank, one number of chunks: every contender over the same memory."""

    def __init__(self, rank: int, ranks: int, device: Any, chunks: int) -> None:
        import torch
        import torch.distributed as dist

        from patched_engine.sharding.group import Group
        from patched_engine.sharding.rounds import Pages, Staging, Streams

        self.torch, self.dist = torch, dist
        self.rank, self.ranks, self.device, self.chunks = rank, ranks, device, chunks
        is_gpu = device.type == "cuda"
        layers = LAYERS if is_gpu else HOST_LAYERS
        shape = torch.Size([1, layers, CHUNK_TOKENS, HEAD_SIZE])
        facts = SimpleNamespace(
            get_shapes=lambda: [shape], get_dtypes=lambda: [torch.bfloat16], world_size=ranks
        )
        self.bytes = shape.numel() * 2
        self.group = Group(rank, ranks, dist.new_group(backend="gloo"), None)
        generator = torch.Generator().manual_seed(1)
        one = torch.randint(0, 255, (self.bytes,), dtype=torch.uint8, generator=generator)
        self.source = one.pin_memory() if is_gpu else one
        # Each chunk's own bytes: the first eight say which it is.
        self.own = {c: self._chunk(c) for c in range(chunks) if c % ranks == rank or rank == 0}
        order = torch.randperm(chunks, generator=generator)
        pages = (order[:, None] * CHUNK_TOKENS + torch.arange(CHUNK_TOKENS)).flatten()
        self.slots = pages.to(device)
        self.kv = torch.zeros(
            (layers, chunks * CHUNK_TOKENS, HEAD_SIZE), dtype=torch.bfloat16, device=device
        )
        tokens = {c: (c * CHUNK_TOKENS, (c + 1) * CHUNK_TOKENS) for c in range(chunks)}
        connector = _Connector(torch.cuda.Stream(device) if is_gpu else None)
        from lmcache.v1.memory_management import MemoryFormat

        self.pages = Pages(
            connector,
            facts,
            MemoryFormat.KV_MLA_FMT,
            tokens,
            {"kvcaches": self.kv, "slots": self.slots},
        )
        self.staging = Staging(ranks, self.bytes, device)
        self.streams = Streams(device) if is_gpu else None

    def _chunk(self, index: int) -> _Chunk:
        data = self.source.clone()
        if self.device.type == "cuda":
            data = data.pin_memory()
        data[:8] = self.torch.tensor([index], dtype=self.torch.int64).view(self.torch.uint8)
        return _Chunk(data)

    def contenders(self) -> dict[str, Callable[[], None]]:
        return {
            "stock": self.stock,
            "post": self.post,
            "post overlapped": self.post_overlapped,
            "ours": self.ours,
            "copies": self.copies,
            "rounds": self.rounds,
        }

    def stock(self) -> None:
        for chunk in range(self.chunks):
            said = [(chunk, self.bytes)]
            self.dist.broadcast_object_list(said, 0, group=self.group.control)
            if self.rank == 0:
                data = self.own[chunk].raw_tensor.to(self.device)
            else:
                data = self.torch.empty(self.bytes, dtype=self.torch.uint8, device=self.device)
            self.dist.broadcast(data, 0)
            self._place(chunk, data)

    def post(self) -> None:
        self.group.exchange(bytes(64))
        for chunk in range(self.chunks):
            owner = chunk % self.ranks
            if owner == self.rank:
                data = self.own[chunk].raw_tensor.to(self.device)
            else:
                data = self.torch.empty(self.bytes, dtype=self.torch.uint8, device=self.device)
            self.dist.broadcast(data, owner)
            self._place(chunk, data)

    def post_overlapped(self) -> None:
        if self.streams is None:
            self.post()
            return
        self.group.exchange(bytes(64))
        torch = self.torch
        ahead: dict[int, tuple[Any, Any]] = {}
        mine = [c for c in range(self.chunks) if c % self.ranks == self.rank]
        todo = iter(mine)

        def begin() -> None:
            chunk = next(todo, None)
            if chunk is not None:
                with torch.cuda.stream(self.streams.copies):  # type: ignore[union-attr]
                    data = self.own[chunk].raw_tensor.to(self.device, non_blocking=True)
                    ahead[chunk] = data, self.streams.copies.record_event()  # type: ignore[union-attr]

        for _ in range(4):
            begin()
        for chunk in range(self.chunks):
            owner = chunk % self.ranks
            if owner == self.rank:
                data, copied = ahead.pop(chunk)
                torch.cuda.current_stream().wait_event(copied)
                begin()
            else:
                data = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
            self.dist.broadcast(data, owner)
            self._place(chunk, data)

    def _place(self, chunk: int, data: Any) -> None:
        if self.device.type == "cuda":
            self.pages.connector.load_stream.wait_stream(self.torch.cuda.current_stream())
        self.pages.connector.batched_to_gpu(
            [self.pages._object(data)],
            [chunk * CHUNK_TOKENS],
            [(chunk + 1) * CHUNK_TOKENS],
            kvcaches=self.kv,
            slots=self.slots,
        )

    def ours(self) -> None:
        from patched_engine.sharding.driver import drive
        from patched_engine.sharding.ownership import first_owned
        from patched_engine.sharding.protocol import Plan, load
        from patched_engine.sharding.rounds import DeviceRounds, HostRounds

        mine = {c: self.own[c] for c in range(self.rank, self.chunks, self.ranks)}
        plan = Plan(self.rank, self.ranks, 0, 0, self.chunks, 1)
        assert first_owned(self.rank, self.ranks, 0) == self.rank

        def make() -> Any:
            self.staging.reserve()
            if self.streams is None:
                return HostRounds(self.group, self.staging, self.pages, mine)
            return DeviceRounds(self.group, self.staging, self.pages, mine, self.streams)

        loaded = drive(load(plan), self.group, lambda: len(mine), make)
        assert loaded.end_chunk == self.chunks, loaded

    def copies(self) -> None:
        for chunk in range(self.rank, self.chunks, self.ranks):
            self.staging.slot(chunk // self.ranks, self.rank).copy_(
                self.own[chunk].raw_tensor, non_blocking=True
            )

    def rounds(self) -> None:
        for number in range(-(-self.chunks // self.ranks)):
            self.group.gather(self.staging.round(number), self.staging.slot(number, self.rank))

    def is_right(self) -> bool:
        """Whether every chunk lies where its tokens' slots are."""
        for chunk in range(self.chunks):
            slot = int(self.slots[chunk * CHUNK_TOKENS])
            head = self.kv[0, slot, :4].contiguous().view(self.torch.int64)
            if int(head[0]) != chunk:
                return False
        return True

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()


def _rank(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    rank, ranks, folder = arguments.rank, arguments.ranks, Path(arguments.folder)
    is_gpu = arguments.device == "cuda"
    device = torch.device("cpu")
    if is_gpu:
        device = torch.device("cuda", 0 if arguments.share_gpu else rank)
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    has_lmcache = _lmcache_or_a_stand_in()
    dist.init_process_group(
        "nccl" if is_gpu and not arguments.share_gpu else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
    )
    found: dict[str, dict[str, list[float]]] = {}
    for chunks in CHUNK_COUNTS:
        bench = _Bench(rank, ranks, device, chunks)
        bench.staging.reserve()
        seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for turn in range(ROUNDS + 1):
            for name, run in bench.contenders().items():
                bench.kv.zero_()
                bench.wait()
                dist.barrier(group=bench.group.control)
                begun = time.perf_counter()
                run()
                bench.wait()
                took = time.perf_counter() - begun
                if name not in ("copies", "rounds"):
                    assert bench.is_right(), f"{name} put wrong bytes in place"
                slowest = torch.tensor([took])
                dist.all_reduce(slowest, dist.ReduceOp.MAX, group=bench.group.control)
                if turn:  # the first is for the caches
                    seconds[name].append(float(slowest))
        found[str(chunks)] = seconds
        found[str(chunks)]["bytes"] = [float(bench.bytes)]
        found[str(chunks)]["has_lmcache"] = [float(has_lmcache)]
        del bench
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def _lmcache_or_a_stand_in() -> bool:
    """Whether LMCache's memory objects are here; else a class with as much of them as is used."""
    try:
        import lmcache.v1.memory_management  # noqa: F401
    except ImportError:
        pass
    else:
        return True

    class Facts:
        def __init__(self, **facts: Any) -> None:
            self.__dict__.update(facts)

    class Memory:
        def __init__(self, raw_data: Any, metadata: Any, parent_allocator: Any) -> None:
            self.raw_data, self.meta = raw_data, metadata

        @property
        def tensor(self) -> Any:
            return self.raw_data.view(self.meta.dtype).view(self.meta.shape)

    module = types.ModuleType("lmcache.v1.memory_management")
    vars(module).update(MemoryObjMetadata=Facts, TensorMemoryObj=Memory)
    vars(module).update(MemoryFormat=SimpleNamespace(KV_MLA_FMT=None))
    for name in ("lmcache", "lmcache.v1"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module
    return False


def _report(found: list[dict[str, dict[str, list[float]]]], device: str, share_gpu: bool) -> Report:
    import torch

    name = "load_cpu" if device == "cpu" else "load_shared_gpu" if share_gpu else "load"
    report = Report(name if len(found) > 1 else f"{name}_one_rank", ("chunks", *CONTENDERS))
    if not found[0][str(CHUNK_COUNTS[0])]["has_lmcache"][0]:
        report.notes.append("LMCache does not import here: a stand-in for its memory objects")
    report.versions = {"torch": torch.__version__, "device": _card(device)}
    report.notes.append(
        f"{len(found)} ranks on {device}; ms, medians of {ROUNDS} turns, the slowest rank;"
        f" chunks of {found[0][str(CHUNK_COUNTS[0])]['bytes'][0] / 1e6:.1f} MB"
    )
    for chunks in CHUNK_COUNTS:
        seconds = found[0][str(chunks)]
        middle = {name: statistics.median(seconds[name]) for name in CONTENDERS}
        report.rows.append((str(chunks), *(f"{middle[name] * 1e3:.2f}" for name in CONTENDERS)))
        paired = {
            name: statistics.median(
                a / b for a, b in zip(seconds[name], seconds["ours"], strict=True)
            )
            for name in ("stock", "post", "post overlapped")
        }
        halves = statistics.median(seconds["ours"][::2]), statistics.median(seconds["ours"][1::2])
        noise = abs(halves[0] - halves[1]) / min(halves)
        one_round = middle["rounds"] / -(-chunks // len(found))
        limit = WITHIN_LIMIT * max(middle["copies"], middle["rounds"]) + one_round
        if device == "cuda" and not share_gpu and len(found) > 1:
            report.bars += [
                Bar(f"{chunks}: ours over its limit", middle["ours"] / limit, 1.0, noise=noise),
                Bar(f"{chunks}: post / ours", paired["post"], FASTER_THAN_POST, "x", False, noise),
                Bar(
                    f"{chunks}: post overlapped / ours",
                    paired["post overlapped"],
                    FASTER_THAN_OVERLAPPED,
                    "x",
                    False,
                    noise,
                ),
            ]
        else:
            report.notes.append(
                f"{chunks} chunks: ours over its limit {middle['ours'] / limit:.2f};"
                " times ours in the same turn: "
                + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in paired.items())
                + f" (A/A {noise:.2f})"
            )
    return report


def _card(device: str) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return str(torch.cuda.get_device_name(0))


if __name__ == "__main__":
    sys.exit(main())
