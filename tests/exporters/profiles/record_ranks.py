"""Records real ranks with torch.profiler while one of them is late by a known time: our own truth.

`python -m tests.exporters.profiles.record_ranks FOLDER --late 1` runs two processes over gloo;
`--backend nccl` two GPUs, where the late rank waits on the GPU's own stream, or copies to the host.
Writes rank0.json, rank1.json and truth.txt: what each rank waited, by its own clock at entry.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

WORLD = 2


def worker(rank: int, args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    on_gpu = args.backend == "nccl"
    if on_gpu:
        torch.cuda.set_device(rank)
    device = f"cuda:{rank}" if on_gpu else "cpu"
    # By a file: a port that is free now may be another's when it is wanted.
    meeting = f"file://{args.folder.resolve()}/meeting"
    dist.init_process_group(args.backend, init_method=meeting, rank=rank, world_size=WORLD)
    store = dist.distributed_c10d._get_default_store()
    mine = torch.ones(args.elements, device=device)
    whole = torch.empty(WORLD * args.elements, device=device)
    host = torch.empty(args.copy_bytes, dtype=torch.uint8, pin_memory=on_gpu)
    block = torch.empty(args.copy_bytes, dtype=torch.uint8, device=device)

    def collective() -> None:
        if args.op == "all_gather":
            dist.all_gather_into_tensor(whole, mine)
        else:
            dist.broadcast(mine, 0)

    def be_late() -> None:
        with record_function("LMCacheEngine.store"):
            if args.copy_bytes and on_gpu:
                host.copy_(block, non_blocking=True)
            elif on_gpu:
                torch.cuda._sleep(int(args.delay * 1.5e9))
            else:
                time.sleep(args.delay)

    for _ in range(3):  # connections and buffers
        collective()
        dist.barrier()
    if on_gpu:
        torch.cuda.synchronize()
    entered: list[float] = []
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with profile(activities=activities) as recorded:
        # A profiler that starts later on one rank is a delay of its own: met outside of gloo.
        store.set(f"recording{rank}", "1")
        store.wait([f"recording{r}" for r in range(WORLD)])
        for _ in range(args.count):
            if rank == args.late:
                be_late()
            entered.append(time.monotonic())
            collective()
        if on_gpu:
            torch.cuda.synchronize()
    recorded.export_chrome_trace(str(args.folder / f"rank{rank}.json"))
    everyone: list[list[float] | None] = [None] * WORLD
    dist.all_gather_object(everyone, entered)
    if rank == 0:
        waits = [
            sum(max(times) - times[r] for times in zip(*everyone, strict=True))
            for r in range(WORLD)
        ]
        truth = {"late": args.late, "op": args.op, "count": args.count, "wait_seconds": waits}
        (args.folder / "truth.txt").write_text(json.dumps(truth) + "\n")
    # gloo aborts a rank whose peer takes the group down first: both have all they came for.
    store.set(f"finished{rank}", "1")
    store.wait([f"finished{r}" for r in range(WORLD)])
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--op", default="all_gather", choices=("all_gather", "broadcast"))
    parser.add_argument("--late", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--elements", type=int, default=4096)
    parser.add_argument("--copy-bytes", type=int, default=0)
    args = parser.parse_args()
    import torch.multiprocessing

    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "meeting").unlink(missing_ok=True)
    torch.multiprocessing.spawn(worker, (args,), nprocs=WORLD)
    (args.folder / "meeting").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
