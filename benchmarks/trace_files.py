"""Writes traces of a stated size for the trace bench: the shape of a prefill pod's, drawn evenly.

Of 41 events 24 are cpu_ops, 10 runtime calls, 6 kernels and one a collective or a range: what a
recording of an engine with record_shapes off holds, at about 200 bytes each.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

KERNELS = (
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<float>>(int, float)",
    "flash_fwd_kernel",
    "void vllm::act_and_mul_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, int)",
)
CALLS = ("aten::linear", "aten::addmm", "aten::copy_", "aten::empty", "aten::view", "aten::mul")
COLLECTIVE = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
LATE = 1
STEP_US = 2000.0
LATE_US = 400.0
EVENTS_PER_STEP = 41


def write_kineto(folder: Path, ranks: int, megabytes: float) -> list[Path]:
    """One file a rank, `megabytes` of JSON in all; rank 1 is late to every collective."""
    files = []
    for rank in range(ranks):
        path = folder / f"rank{rank}_trace.json"
        with path.open("w", encoding="utf-8") as file:
            _write_rank(file, rank, ranks, megabytes * 1e6 / ranks)
        files.append(path)
    return files


def _write_rank(file: TextIO, rank: int, ranks: int, size: float) -> None:
    draw = random.Random(rank)
    info = f'{{"backend": "nccl", "rank": {rank}, "world_size": {ranks}}}'
    file.write(
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H200", '
        f'"numSms": 132}}],\n  "distributedInfo": {info},\n  "host_name": "node",\n'
        '  "traceEvents": [\n'
    )
    written, step, correlation = 0, 0, 1
    group = ", ".join(map(str, range(ranks)))
    while written < size:
        base = 5_240_176_000.0 + step * STEP_US
        late = LATE_US if rank == LATE else 0.0
        out = []
        for i in range(24):
            out.append(
                f'"cat": "cpu_op", "name": "{CALLS[i % 6]}", "pid": 29364, "tid": 29364,\n    '
                f'"ts": {base + i * 40:.3f}, "dur": {9 + draw.random() * 9:.3f},\n    "args": {{\n'
                f'      "External id": {correlation + i},"Record function id": 0, "Ev Idx": {i}\n'
                "    }"
            )
        for i in range(10):
            out.append(
                '"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 29364, "tid": 29364,\n'
                f'    "ts": {base + i * 90 + 4:.3f}, "dur": {3 + draw.random():.3f},\n    "args": '
                f'{{\n      "External id": {correlation + i},"cbid": 211, "correlation": '
                f"{correlation + i}\n    }}"
            )
        for i in range(6):
            out.append(
                f'"cat": "kernel", "name": "{KERNELS[i % 4]}", "pid": {rank}, "tid": 7,\n    '
                f'"ts": {base + 40 + i * 200:.3f}, "dur": {150 + draw.random() * 30:.3f},\n    '
                f'"args": {{\n      "External id": {correlation + i},"queued": 0, "device": {rank},'
                f' "context": 1,\n      "stream": 7, "correlation": {correlation + i},\n      '
                '"registers per thread": 128,\n      "shared memory": 0,\n      "grid": '
                '[1464, 1, 1],\n      "block": [128, 1, 1],\n'
                '      "est. achieved occupancy %": 31\n    }'
            )
        if step % 2 and rank == LATE:
            out.append(
                '"cat": "user_annotation", "name": "LMCacheEngine.store", "pid": 29364, "tid": '
                f'29364,\n    "ts": {base + 1250:.3f}, "dur": {LATE_US - 20:.3f},\n    "args": '
                '{\n      "External id": 9\n    }'
            )
        start = base + 1260 + late + draw.random() * 8
        end = base + 1260 + LATE_US + 120 + draw.random()
        out.append(
            f'"cat": "kernel", "name": "{COLLECTIVE}", "pid": {rank}, "tid": 30,\n    "ts": '
            f'{start:.3f}, "dur": {end - start:.3f},\n    "args": {{\n      "External id": '
            f'{correlation + 11},"device": {rank}, "stream": 30, "correlation": {correlation + 11},'
            '\n      "grid": [32, 1, 1],\n      "block": [640, 1, 1],\n      "Collective name": '
            '"_allgather_base", "In msg nelems": 1048576, "Out msg nelems": '
            f'{1048576 * ranks}, "Group size": {ranks}, "dtype": "BFloat16",\n      "In split '
            'size": "[]", "Out split size": "[]", "Process Group Name": "0", "Process Group '
            f'Description": "default_pg", "Process Group Ranks": "[{group}]"\n    }}'
        )
        text = "".join(f'  {{\n    "ph": "X", {event}\n  }},\n' for event in out)
        file.write(text)
        written += len(text)
        step += 1
        correlation += 41
    # HTA wants at least one whole profiler step.
    file.write(
        '  {\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 29364, '
        f'"tid": 29364,\n    "ts": 5240176000.0, "dur": {step * STEP_US:.3f},\n    "args": {{}}\n'
        '  }],\n  "traceName": "trace.json"\n}\n'
    )


def write_nsys(path: Path, ranks: int, kernels: int) -> Path:
    """An export with so many kernels in all, one in 30 a collective to which rank 1 is late."""
    db = sqlite3.connect(path)
    db.executescript(
        """
        PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.25.0');
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
          text TEXT, globalTid INTEGER, textId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, globalPid INTEGER,
          bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
          correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
          shortName INTEGER NOT NULL, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
          blockX INTEGER, blockY INTEGER, blockZ INTEGER);
        """
    )
    listed = (*KERNELS, COLLECTIVE)
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(listed)))

    def rows() -> Iterator[tuple[int, ...]]:
        for rank in range(ranks):
            draw = random.Random(rank)
            pid = (1 << 48) | ((1000 + rank) << 24)
            for i in range(kernels // ranks):
                begin = i * 10_000
                shape = (1464, 1, 1, 128, 1, 1)
                if i % 30 == 29:
                    start = begin + (3000 if rank == LATE else 0) + draw.randrange(80)
                    yield (start, begin + 6000, rank, 1, 30, i, pid, 4, 4, *shape)
                else:
                    yield (begin, begin + 9000, rank, 1, 7, i, pid, i % 4, i % 4, *shape)

    db.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", rows()
    )
    db.commit()
    db.close()
    return path
