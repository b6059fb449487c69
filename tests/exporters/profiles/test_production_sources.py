"""What production leaves behind: NCCL Inspector's lines and PyTorch's Flight Recorder dumps."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from detectors.late_in_profile import CLEAR
from exporters.readers.profiles.recognise import format_of, rank_in_name
from exporters.readers.profiles.summary import read

LATE = 2
WORLD = 4
COUNT = 30


def duration_us(rank: int, sequence: int) -> float:
    """The late rank finds everyone there; the others wait for it about 500 us."""
    noise = (rank * 7 + sequence * 3) % 11
    return 40.0 + (0 if rank == LATE else 500 + noise)


def inspector_line(rank: int, sequence: int, **changes: object) -> str:
    return json.dumps(
        {
            "header": {"id": "0x9e7a479f95a66c", "rank": rank, "n_ranks": WORLD, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "0",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 1749490229087081 + sequence * 1000,
                "hostname": "node",
                "pid": 100 + rank,
            },
            "coll_perf": {
                "coll": "AllGather",
                "coll_sn": sequence,
                "coll_msg_size_bytes": 65536,
                "coll_exec_time_us": duration_us(rank, sequence),
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.0,
                "coll_busbw_gbs": 1.0,
                **changes,
            },
        }
    )


def entry(rank: int, sequence: int, **changes: object) -> dict:
    return {
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:_all_gather_base",
        "time_created_ns": 1724779239936775119 + sequence * 1_000_000,
        "input_sizes": [[3, 4]],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1724779239975811724 + sequence * 1_000_000,
        "duration_ms": duration_us(rank, sequence) / 1e3,
        "retired": True,
        "is_p2p": False,
        **changes,
    }


def dump(rank: int, entries: list[dict]) -> dict:
    ranks = json.dumps(list(range(WORLD)))
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {},
        "entries": entries,
    }


def write_inspector(folder: Path) -> list[Path]:
    files = []
    for rank in range(WORLD):
        lines = "\n".join(inspector_line(rank, n) for n in range(COUNT))
        path = folder / f"node-pid{100 + rank}.log.gz"
        path.write_bytes(gzip.compress(lines.encode()))
        files.append(path)
    return files


def write_pickles(folder: Path) -> list[Path]:
    files = [folder / f"nccl_trace_rank_{rank}" for rank in range(WORLD)]
    for rank, path in enumerate(files):
        path.write_bytes(pickle.dumps(dump(rank, [entry(rank, n) for n in range(COUNT)]), 2))
    return files


def write_json(folder: Path) -> list[Path]:
    files = [folder / f"nccl_trace_{rank}.json" for rank in range(WORLD)]
    for rank, path in enumerate(files):
        path.write_text(json.dumps(dump(rank, [entry(rank, n) for n in range(COUNT)])))
    return files


@pytest.mark.parametrize("write", [write_inspector, write_pickles, write_json])
def test_the_late_rank_by_duration_alone(
    tmp_path: Path, write: Callable[[Path], list[Path]]
) -> None:
    profile, unseen, recording, _ = read(write(tmp_path), (), CLEAR)
    assert profile.late is not None
    assert (profile.late.rank, profile.late.is_clear) == (LATE, True)
    assert profile.late.agrees is None, "one basis only"
    for rank in profile.ranks:
        truth = sum(duration_us(rank.rank, n) - 40 for n in range(COUNT)) / 1e6
        assert rank.wait_seconds == pytest.approx(truth, rel=0.01, abs=1e-6)
        assert rank.wait_by_skew_seconds is None
        assert rank.busy_seconds is None
        assert rank.gaps == ()
    assert profile.late.meanwhile == ()
    assert any(u.source == "timeline" for u in unseen)
    assert recording.world_size == WORLD


def test_times_of_the_cpu_are_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    lines = [inspector_line(0, n, coll_timing_source="kernel_cpu") for n in range(5)]
    path.write_text("\n".join(lines))
    profile, unseen, _, _ = read([path], (), CLEAR)
    assert profile.ranks == ()
    assert any("timed on the CPU" in u.detail for u in unseen)


def test_a_dump_without_timing_says_how_to_have_it(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    untimed = [entry(0, n, duration_ms=None) for n in range(5)]
    path.write_bytes(pickle.dumps(dump(0, untimed)))
    _, unseen, _, _ = read([path], (), CLEAR)
    assert any("TORCH_NCCL_ENABLE_TIMING" in u.mend for u in unseen)


def test_what_had_not_finished_is_told(tmp_path: Path) -> None:
    files = write_pickles(tmp_path)
    hung = [entry(1, n) for n in range(COUNT)]
    hung.append(entry(1, COUNT, state="started", retired=False, duration_ms=None))
    files[1].write_bytes(pickle.dumps(dump(1, hung)))
    profile, unseen, _, _ = read(files, (), CLEAR)
    assert profile.late is not None
    (told,) = [u for u in unseen if u.reason == "outstanding"]
    assert f"number {COUNT} of group 0" in told.detail


def test_a_real_dump_of_this_torch(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(distributed, "_dump_fr_trace"):
        pytest.skip("this torch has no Flight Recorder without a GPU")
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(distributed._dump_fr_trace())
    assert format_of(path) == "flight-recorder"
    read([path], (), CLEAR)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json.gz", 3),
        ("worker_12.1790857026.pt.trace.json", 12),
        ("sampled_rank-1.json.gz", 1),
        ("nccl_trace_rank_7", 7),
        ("dp0_pp0_tp5.json", None),
        ("trace.json", None),
        ("profile-4.json", 4),
    ],
)
def test_the_rank_in_a_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path(name)) == rank
