"""Writes a simulated run as an Nsight Systems export, in the shapes that its schemas 3.x had."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from tests.exporters.profiles.simulated import Run

# How NCCL and RCCL have spelled their kernels.
SPELLINGS = (
    "ncclDevKernel_{0}_RING_LL",
    "ncclDevKernel_{0}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclKernel_{0}_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclSymDevKernel_{0}_LLMC",
)
TITLES = {
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
}


def kernel_name(draw: random.Random, spelling: str, op: str) -> str:
    return spelling.format(TITLES[op])


def write_nsys(run: Run, path: Path) -> set[str]:
    """Returns the names of what the file was drawn to lack."""
    draw = random.Random(run.seed * 31 + 7)
    lacks = {name for name in ("nvtx", "runtime", "memcpy", "gpu_info") if draw.random() < 0.15}
    inline_text = draw.random() < 0.5
    old_columns = draw.random() < 0.5
    masked_devices = draw.random() < 0.25  # CUDA_VISIBLE_DEVICES: each process sees device 0
    spelling = draw.choice(SPELLINGS)
    db = sqlite3.connect(path)
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings) + 1)

    extra = "" if old_columns else ", greenContextId INTEGER, clusterX INTEGER"
    db.executescript(
        f"""
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
          correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
          shortName INTEGER NOT NULL, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
          blockX INTEGER, blockY INTEGER, blockZ INTEGER{extra});
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
          globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
          globalTid INTEGER, nameId INTEGER NOT NULL);
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
          text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT, smCount INTEGER,
          memoryBandwidth INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 132, 4800000000000);
        """
    )
    minor = draw.randint(11, 25)
    db.execute(
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', ?)", (f"3.{minor}.0",)
    )
    streams = [draw.sample(range(7, 60), 6) for _ in range(run.size)]
    kernels, copies, ranges = [], [], []
    for rank in range(run.size):
        pid = (1 << 48) | ((1000 + rank) << 24)
        device = 0 if masked_devices else rank
        for row in run.rows[rank]:
            if row.kind in ("kernel", "collective"):
                is_collective = row.kind == "collective"
                name = kernel_name(draw, spelling, row.op) if is_collective else row.name
                group = 1 + min(row.group, 1) if is_collective else 0
                ids = (text(name), text(name.split("(")[0]))
                tail = () if old_columns else (None, 1)
                kernels.append(
                    (
                        *(row.start, row.end, device, 1, streams[rank][group], 1, pid, *ids),
                        *(32, 1, 1, 640, 1, 1),
                        *tail,
                    )
                )
            elif row.kind == "copy":
                copies.append((row.start, row.end, device, 1, streams[rank][3], pid, row.bytes, 2))
            elif row.kind == "range":
                named = (row.name, None) if inline_text else (None, text(row.name))
                ranges.append((row.start, row.end, 59, named[0], pid | 77, named[1], 0))
    draw.shuffle(kernels)  # the order of rows says nothing
    marks = ",".join("?" * len(kernels[0]))
    db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", kernels)
    db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?)", copies)
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?)", ranges)
    db.executemany("INSERT INTO StringIds VALUES (?,?)", [(i, v) for v, i in strings.items()])
    for lack, table in (
        ("nvtx", "NVTX_EVENTS"),
        ("runtime", "CUPTI_ACTIVITY_KIND_RUNTIME"),
        ("memcpy", "CUPTI_ACTIVITY_KIND_MEMCPY"),
        ("gpu_info", "TARGET_INFO_GPU"),
    ):
        if lack in lacks:
            db.execute(f"DROP TABLE {table}")
    db.commit()
    db.close()
    return lacks
