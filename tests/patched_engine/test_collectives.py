"""Real gloo groups under the hooks: every rank's ring against what the ranks did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporters.page_layout import RingRecord
from tests.patched_engine.collective_ranks import DELAY_SECONDS
from tests.patched_engine.decode import Decoded, decode

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("collective_ranks.py")

pytest.importorskip("torch")
COLLECTIVES = 15  # how many the program makes on the default group


def run_ranks(
    tmp_path: Path, world_size: int, late_rank: int
) -> tuple[list[Decoded], list[Decoded]]:
    """Pages while the late rank holds the others up, and at the end."""
    pages = tmp_path / "pages"
    pages.mkdir()
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                str(rank),
                str(world_size),
                str(tmp_path / "rdv"),
                str(late_rank),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "STALLSCOPE_DIR": str(pages),
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    held: list[Decoded] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        held = read(pages, quiet=False)
        if len(held) == world_size and all(
            d.counters["collectives"] >= COLLECTIVES - 1 for d in held
        ):
            held = read(pages)
            if sum(d.rings[0][-1].depart_ns == 0 for d in held) == world_size - 1:
                break
        time.sleep(0.05)
    for rank in ranks:
        out, _ = rank.communicate(timeout=30)
        assert rank.returncode == 0
        assert out.strip() == "{}", "no hook may have failed"
    return held, read(pages)


def read(pages: Path, quiet: bool = True) -> list[Decoded]:
    return sorted(
        (decode(p, quiet) for p in pages.glob("*.page")), key=lambda d: int(d.info["rank"])
    )


@pytest.mark.parametrize(("world_size", "late_rank"), [(2, 1), (3, 0)])
def test_rings_agree_with_what_the_ranks_did(
    tmp_path: Path, world_size: int, late_rank: int
) -> None:
    held, final = run_ranks(tmp_path, world_size, late_rank)
    world = [d.rings[0] for d in final]
    # One sequence a group, the same op at each number on every rank, nothing recorded twice.
    assert len({tuple((r.sequence, r.op) for r in ring) for ring in world}) == 1
    ops = [r.op for r in world[0]]
    assert ops[: ops.index("all_gather")] in (["barrier"], ["barrier"] * 2)
    body = ops[ops.index("all_gather") :]
    assert body == [
        *["all_gather"] * 5,
        *["broadcast"] * 3,
        "all_reduce",
        *["all_gather"] * 3,  # into_tensor, then the object's size and its bytes
        "barrier",
        "barrier",
    ]
    assert all(r.depart_ns >= r.arrive_ns > 0 for ring in world for r in ring)
    first = ops.index("all_gather")
    for at in range(first, first + 5):
        durations = [(ring[at].depart_ns - ring[at].arrive_ns) / 1e9 for ring in world]
        waits = [d - min(durations) for d in durations]
        assert durations.index(min(durations)) == late_rank
        assert waits[late_rank] == 0
        others = [w for r, w in enumerate(waits) if r != late_rank]
        assert all(w > 0.8 * DELAY_SECONDS for w in others)
    assert all(ring[first].bytes == 256 * 8 for ring in world)
    reduced = ops.index("all_reduce")
    assert {ring[reduced].basis for ring in world} == {"none"}, "async host times are no wait"
    assert {ring[first].basis for ring in world} == {"host"}
    missing = [d.info["rank"] for d in held if last(d).depart_ns != 0 or last(d).op != "barrier"]
    assert missing == [late_rank], "the open barrier names who is missing"
    if world_size == 3:
        groups = {tuple(g["ranks"]): g["ring"] for g in final[0].info["groups"]}
        assert set(groups) == {(0, 1, 2), (0, 1)}
        assert [r.op for r in final[0].rings[groups[0, 1]]] == ["all_reduce"]
        assert len(final[2].info["groups"]) == 1


def last(page: Decoded) -> RingRecord:
    return page.rings[0][-1]
