"""One of two real gloo ranks, of which the other comes late; run as a program by the test beside.

It stamps its own arrivals, outside of the page: what the page must agree with.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

import patched_engine

LATE_RANK = 1
OPS = ("all_gather", "broadcast")


def main() -> None:
    """rank, rendezvous file, and pairs of delay in ms and how many collectives of each op."""
    rank, rendezvous, plan = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    assert patched_engine.install()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    mine, everyone = torch.full((256,), rank), [torch.zeros(256, dtype=torch.long)] * 2
    arrivals_ns: list[int] = []
    for op in OPS:
        for delay_ms, count in plan:
            for _ in range(count):
                dist.barrier()
                if rank == LATE_RANK:
                    time.sleep(delay_ms / 1e3)
                arrivals_ns.append(time.monotonic_ns())
                if op == "all_gather":
                    dist.all_gather(everyone, mine)
                else:
                    dist.broadcast(mine, LATE_RANK)
    print(json.dumps(arrivals_ns), flush=True)
    sys.stdin.readline()
    dist.all_gather(everyone, mine)  # for the test to freeze the other rank before
    os._exit(0)


if __name__ == "__main__":
    main()
