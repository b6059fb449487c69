"""One rank of a real gloo group under the hooks; run as a program by test_collectives."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import patched_engine

DELAY_SECONDS = 0.05


def main() -> None:
    rank, world_size, rendezvous, late_rank = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
    )
    assert patched_engine.install()
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    one, many = torch.full((256,), rank), [torch.zeros(256, dtype=torch.long)] * world_size
    even = dist.new_group([0, 1]) if world_size > 2 else None
    dist.barrier()
    for _ in range(5):
        if rank == late_rank:
            time.sleep(DELAY_SECONDS)
        dist.all_gather([t.clone() for t in many], one)
    for _ in range(3):
        if rank == late_rank:
            time.sleep(DELAY_SECONDS)
        dist.broadcast(one, 0)
    work = dist.all_reduce(one, async_op=True)
    work.wait()
    out = torch.zeros(256 * world_size, dtype=torch.long)
    dist.all_gather_into_tensor(out, torch.full((256,), rank))
    assert out.reshape(world_size, 256)[:, 0].tolist() == list(range(world_size))
    objects: list[object] = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world_size)]
    if even is not None and rank < 2:
        dist.all_reduce(one, group=even)
        dist.destroy_process_group(even)  # on its members only: the default group goes on
    dist.barrier(async_op=False)
    if rank == late_rank:
        time.sleep(3)  # the others stand in an open collective meanwhile
    dist.barrier()
    print(patched_engine.status()["faults"], flush=True)
    time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
