"""Real recordings: two gloo processes with a rank late by a known time, and public profiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from detectors import late_in_profile
from detectors.late_in_profile import CLEAR
from exporters.readers.profiles.summary import read
from tests.exporters.profiles.public_data import public
from tests.runbooks.command_line import ROOT, environment

RECORDINGS = sorted((Path(__file__).parent / "recordings").iterdir())


def check(folder: Path) -> None:
    truth = json.loads((folder / "truth.txt").read_text())
    profile, unseen, _, _ = read(sorted(folder.glob("rank*.json*")), (), CLEAR)
    assert profile.late is not None
    assert profile.late.is_clear
    assert profile.late.rank == truth["late"]
    assert profile.late.agrees
    (group,) = profile.groups
    assert dict(group.ops) == {truth["op"]: truth["count"]}
    assert (group.joined, group.unjoined) == (truth["count"], 0)
    for rank, wait_seconds in zip(profile.ranks, truth["wait_seconds"], strict=True):
        # What a rank has not waited is not exactly 0: it entered, then its worker thread did.
        assert rank.wait_seconds == pytest.approx(wait_seconds, rel=0.05, abs=0.005)
    (finding,) = late_in_profile.judge(profile).findings
    assert (finding.id, finding.rank) == ("straggler-rank", truth["late"])
    assert finding.cause == "store"
    assert any(d.name == "LMCacheEngine.store" for d in profile.late.meanwhile)
    assert [u.source for u in unseen] == ["GPU"]


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_a_rank_late_by_a_known_time(folder: Path) -> None:
    check(folder)


def test_a_recording_made_now(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.exporters.profiles.record_ranks", str(tmp_path)]
    options = ["--late", "0", "--delay", "0.03", "--count", "16"]
    done = subprocess.run(
        [*command, *options],
        check=False,
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path)


def test_the_wait_of_a_public_nsys_export() -> None:
    path = public("nsys/two_gpu_sendrecv.sqlite")
    profile, unseen, _, _ = read([path], (), CLEAR)
    assert [(r.rank, r.collectives) for r in profile.ranks] == [(0, 33), (1, 33)]
    by_skew = [r.wait_by_skew_seconds for r in profile.ranks]
    by_duration = [r.wait_by_duration_seconds for r in profile.ranks]
    assert by_skew == [pytest.approx(0.01090, rel=0.01), pytest.approx(0.00248, rel=0.01)]
    assert by_duration == [pytest.approx(0.01140, rel=0.01), pytest.approx(0.00245, rel=0.01)]
    # Point to point: the design's wait is the skew.
    assert [r.wait_seconds for r in profile.ranks] == by_skew
    assert unseen == ()
    assert profile.late is not None
    assert not profile.late.is_clear, "33 collectives of two ranks, 12 of which hold the wait"


def test_a_public_nsys_export_without_nvtx_and_collectives() -> None:
    profile, unseen, _, _ = read([public("nsys/no_nvtx_table.sqlite")], (), CLEAR)
    assert [r.collectives for r in profile.ranks] == [0]
    assert profile.late is None
    assert [u.reason for u in unseen] == ["missing_table", "no_collectives"]
    assert "NVTX_EVENTS" in unseen[0].detail


def test_a_public_pair_of_a_larger_world() -> None:
    files = [public(f"kineto/sampled_rank-{rank}.json.gz") for rank in (0, 1)]
    profile, unseen, recording, _ = read(files, (), CLEAR)
    assert [(r.rank, r.collectives) for r in profile.ranks] == [(0, 10), (1, 10)]
    assert recording.world_size == 128
    assert all(r.wait_seconds is None for r in profile.ranks), "126 ranks are missing"
    assert any("2 of its 128 ranks" in u.detail for u in unseen)


def test_the_public_data_is_looked_for_where_it_is_said_to_be() -> None:
    if "STALLSCOPE_DATA" in os.environ:
        assert str(public("nsys/two_gpu_sendrecv.sqlite")).startswith(os.environ["STALLSCOPE_DATA"])
