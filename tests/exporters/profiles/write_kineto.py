"""Writes a simulated run as torch.profiler traces, one file a rank, as its versions wrote them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from tests.exporters.profiles.simulated import Run
from tests.exporters.profiles.write_nsys import SPELLINGS, kernel_name

COLLECTIVE_NAMES = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
    "all_to_all": "all_to_allv",
    "broadcast": "broadcast",
}


def write_kineto(run: Run, folder: Path) -> tuple[list[Path], bool]:
    """The files, and whether their ranks share one clock."""
    draw = random.Random(run.seed * 37 + 11)
    with_args = draw.random() < 0.7 or len(run.groups) > 1
    with_sequence = with_args and draw.random() < 0.5
    states_rank = draw.random() < 0.7
    base_ns = draw.choice((0, 1_790_857_026_000_000_000))
    one_clock = draw.random() < 0.6
    packed = draw.random() < 0.5
    indent = draw.choice((None, 1, 2))
    keys_first = draw.choice(("ph", "name"))
    spelling = draw.choice(SPELLINGS)
    files = []
    for rank in range(run.size):
        offset = 0 if one_clock else draw.randint(-5_000_000, 5_000_000_000)
        events = [
            {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": "python"}}
        ]
        for number, row in enumerate(run.rows[rank]):
            event = {
                "ts": (row.start + offset) / 1e3,
                "dur": (row.end - row.start) / 1e3,
                "pid": rank,
                "tid": 7,
            }
            args: dict[str, object] = {"External id": number, "device": rank, "stream": 7}
            if row.kind == "range":
                event.update(cat="user_annotation", name=row.name, tid=4711)
                args = {"External id": number}
            elif row.kind == "copy":
                event.update(cat="gpu_memcpy", name="Memcpy DtoH (Device -> Pinned)")
                args.update(bytes=row.bytes, stream=20)
            elif row.kind == "kernel":
                event.update(cat="kernel", name=row.name)
                args.update(grid=[132, 1, 1], block=[128, 1, 1])
            else:
                event.update(cat="kernel", name=kernel_name(draw, spelling, row.op))
                args.update(stream=30 + min(row.group, 1), grid=[32, 1, 1], block=[640, 1, 1])
                if with_args:
                    ranks = run.groups[row.group]
                    args["Collective name"] = COLLECTIVE_NAMES[row.op]
                    args["Process Group Name"] = str(min(row.group, 1))
                    args["Process Group Ranks"] = str(list(ranks))
                    args["Group size"] = len(ranks)
                    args["In msg nelems"] = args["Out msg nelems"] = row.bytes // 2
                    args["dtype"] = "BFloat16"
                if with_sequence:
                    args["Seq"] = row.sequence
            event["args"] = args
            first = {"ph": "X"} if keys_first == "ph" else {"name": event.pop("name"), "ph": "X"}
            events.append({**first, **event})
        draw.shuffle(events)
        info = {"backend": "nccl", "world_size": run.size}
        if states_rank:
            info["rank"] = rank
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
            "distributedInfo": info,
            "traceEvents": events,
            "baseTimeNanoseconds": base_ns,
            "traceName": "trace.json",
        }
        if one_clock:
            document["host_name"] = "node-1"
        else:
            document["host_name"] = f"node-{rank}"
        raw = json.dumps(document, indent=indent).encode()
        suffix = ".json.gz" if packed else ".json"
        path = folder / f"worker_rank{rank}{suffix}"
        path.write_bytes(gzip.compress(raw, 1) if packed else raw)
        files.append(path)
    return files, one_clock
