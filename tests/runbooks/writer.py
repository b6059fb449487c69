"""One rank of a small engine as a process: the real page writer in a loop of all-gathers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from exporters import page_layout as layout
from patched_engine.page import Page

INTERVAL_SECONDS = 0.05


def main(folder: Path, rank: int, world_size: int) -> None:
    """Write until killed; every rank enters each collective at the same beat of the clock."""
    page = Page.create(
        folder,
        {
            "engine_id": "writer",
            "roles": ["worker"],
            "rank": rank,
            "world_size": world_size,
            "groups": [{"ring": 0, "name": "world", "ranks": list(range(world_size))}],
        },
    )
    opened = page.new_ring()
    assert opened is not None
    _, ring = opened
    print("ready", flush=True)
    op, basis = layout.OP_INDEX["all_gather"], layout.BASIS_INDEX["host"]
    while True:
        beat = int(time.monotonic() / INTERVAL_SECONDS) + 1
        time.sleep(max(0.0, beat * INTERVAL_SECONDS - time.monotonic()))
        entry = ring.begin(op, basis, beat, 4096)
        time.sleep(INTERVAL_SECONDS / 5)  # beyond which every rank has arrived
        ring.end(entry)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
