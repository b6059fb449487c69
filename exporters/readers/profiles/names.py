"""Which collective a kernel's name stands for, in NCCL's spellings old and new, and RCCL's."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

ALL_GATHER: Final = "all_gather"
REDUCE_SCATTER: Final = "reduce_scatter"
ALL_REDUCE: Final = "all_reduce"
ALL_TO_ALL: Final = "all_to_all"
BARRIER: Final = "barrier"
BROADCAST: Final = "broadcast"
REDUCE: Final = "reduce"
GATHER: Final = "gather"
SCATTER: Final = "scatter"
SEND_RECV: Final = "send_recv"
UNKNOWN: Final = "collective"

OPS: Final = (
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    SEND_RECV,
    UNKNOWN,
)
OP_INDEX: Final = {name: index for index, name in enumerate(OPS)}
# Nobody leaves before the last has come, so that durations alone tell who waited.
SYMMETRIC: Final = frozenset({ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BARRIER})

# A library's own collective kernels: ncclKernel_, ncclDevKernel_, ncclSymDevKernel_ (and its later
# spellings), RCCL's single main kernel, MSCCL, and the all-reduces that engines bring along.
_LIBRARY: Final = re.compile(
    r"\b(nccl(?:Sym\w*?)?(?:Dev)?Kernel|nccl(?=AllReduce|AllGather|ReduceScatter|Broadcast|Reduce"
    r"|SendRecv|AllToAll)|rccl_main_kernel|rccl\w*Kernel|msccl\w*Kernel|oneccl\w*)",
    re.IGNORECASE,
)
_ENGINE: Final = re.compile(
    r"cross_device_reduce|(?:one|two)_?shot_?all_?reduce|multimem_(?:all_reduce|all_gather"
    r"|reduce_scatter)|allreduce_fusion|quick_?all_?reduce",
    re.IGNORECASE,
)
# Longer words first: "reducescatter" holds "reduce" and "scatter".
_WORDS: Final = (
    ("allgather", ALL_GATHER),
    ("reducescatter", REDUCE_SCATTER),
    ("allreduce", ALL_REDUCE),
    ("alltoall", ALL_TO_ALL),
    ("alltoallv", ALL_TO_ALL),
    ("barrier", BARRIER),
    ("broadcast", BROADCAST),
    ("sendrecv", SEND_RECV),
    ("crossdevicereduce", ALL_REDUCE),
    ("send", SEND_RECV),
    ("recv", SEND_RECV),
    ("gather", GATHER),
    ("scatter", SCATTER),
    ("reduce", REDUCE),
)
_HOST: Final = re.compile(r"^(gloo|mpi|ucc):", re.IGNORECASE)

DTYPE_BYTES: Final = {
    "bool": 1,
    "byte": 1,
    "char": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "double": 8,
}


@lru_cache(maxsize=65536)
def collective_of(kernel_name: str) -> str:
    """The op (one of OPS) of a collective kernel; "" where the kernel is none."""
    if not (_LIBRARY.search(kernel_name) or _ENGINE.search(kernel_name)):
        return ""
    return op_named(kernel_name)


@lru_cache(maxsize=4096)
def op_named(text: str) -> str:
    """The op that a collective's name speaks of, in any spelling (`_allgather_base`)."""
    bare = text.replace("(anonymous namespace)::", "").split("(", 1)[0]
    flat = re.sub(r"[^a-z]", "", bare.lower())
    return next((op for word, op in _WORDS if word in flat), UNKNOWN)


@lru_cache(maxsize=65536)
def host_collective_of(range_name: str) -> str:
    """The op of a blocking collective of the CPU (`gloo:all_gather`); "" where it is none."""
    return op_named(range_name.split(":", 1)[1]) if _HOST.match(range_name) else ""


_NUMBERED: Final = re.compile(r",? (?:op_id|seq|id) = -?\d+|#\d+|\b0x[0-9a-fA-F]+")


@lru_cache(maxsize=65536)
def plain(name: str) -> str:
    """A name without the counters that make each call's unique, for sums by name."""
    return _NUMBERED.sub("", name)
