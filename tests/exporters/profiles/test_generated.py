"""Runs drawn from a seed, written in both formats: never a wrong rank, and the right wait."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from detectors import late_in_profile
from detectors.late_in_profile import CLEAR
from exporters.profile import Profile
from exporters.readers.profiles.summary import read
from exporters.snapshot import Unseen
from tests.exporters.profiles.simulated import Row, Run, simulate
from tests.exporters.profiles.write_kineto import write_kineto
from tests.exporters.profiles.write_nsys import write_nsys

FEW = range(12)
MANY = range(200)


def check(run: Run, profile: Profile, unseen: tuple[Unseen, ...]) -> str:
    """ "named", "quiet" (nobody late, nobody named) or "abstained"; fails on anything wrong."""
    late = profile.late
    if late is not None and late.is_clear:
        assert late.rank == run.late, (run.seed, late)
        return "named"
    if run.late is None:
        return "quiet"
    assert (
        [u for u in unseen if u.source == "collective wait"]
        or late is None
        or (late.rank == run.late)
    ), (run.seed, late)
    return "abstained"


def check_waits(run: Run, profile: Profile) -> None:
    """Within 5% (and 5 us a collective, the simulated jitter of the ends)."""
    for rank in profile.ranks:
        truth = run.wait_ns[rank.rank] / 1e9
        got = rank.wait_by_duration_seconds
        if got is not None and not run.has_rooted:
            assert abs(got - truth) <= 0.05 * truth + 5e-6 * rank.collectives, (run.seed, rank)


def nsys(seed: int, folder: Path) -> str:
    run = simulate(seed)
    path = folder / f"{seed}.sqlite"
    lacks = write_nsys(run, path)
    profile, unseen, _, _ = read([path], (), CLEAR)
    missing = {
        u.detail.split("no table ")[1].split(":")[0] for u in unseen if "no table" in u.detail
    }
    assert ("NVTX_EVENTS" in missing) == ("nvtx" in lacks)
    assert ("CUPTI_ACTIVITY_KIND_MEMCPY" in missing) == ("memcpy" in lacks)
    assert len(profile.ranks) == run.size
    said = check(run, profile, unseen)
    if said != "abstained":
        check_waits(run, profile)
    if said == "named" and "memcpy" not in lacks:
        assert profile.ranks[run.late].d2h_bytes == run.copy_bytes
        if run.copy_bytes:
            assert any("DtoH" in d.name for d in profile.late.meanwhile)
    if said == "named" and "nvtx" not in lacks:
        assert any(d.name == "LMCacheEngine.store" for d in profile.late.meanwhile)
    path.unlink()
    return said


def kineto(seed: int, folder: Path, size: int | None = None) -> str:
    run = simulate(seed + 1000, size)
    files, one_clock = write_kineto(run, folder)
    profile, unseen, _, _ = read(files, (), CLEAR)
    assert [r.rank for r in profile.ranks] == list(range(run.size))
    said = check(run, profile, unseen)
    if said != "abstained":
        check_waits(run, profile)
    if seed % 10 == 9 and len(run.groups) == 1:
        alone, missing, _, _ = read(files[:-1], (), CLEAR)
        assert alone.late is None
        assert any(f"{run.size - 1} of its {run.size} ranks" in u.detail for u in missing)
    if not one_clock and run.has_rooted:
        assert any("rooted" in u.detail for u in unseen)
    if said == "named" and run.copy_bytes:
        assert profile.ranks[run.late].d2h_bytes == run.copy_bytes
        assert any("DtoH" in d.name for d in profile.late.meanwhile)
    for file in files:
        file.unlink()
    return said


@pytest.mark.parametrize("seed", FEW)
def test_nsys(tmp_path: Path, seed: int) -> None:
    nsys(seed, tmp_path)


@pytest.mark.parametrize("seed", FEW)
def test_kineto(tmp_path: Path, seed: int) -> None:
    kineto(seed, tmp_path, size=8)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["nsys", "kineto"])
def test_two_hundred_seeds_and_no_wrong_rank(tmp_path: Path, kind: str) -> None:
    said = [
        nsys(seed, tmp_path) if kind == "nsys" else kineto(seed, tmp_path, size=8) for seed in MANY
    ]
    counts = {word: said.count(word) for word in ("named", "quiet", "abstained")}
    print(kind, counts)
    assert counts["named"] >= 0.6 * len(said)
    assert counts["abstained"] <= 0.25 * len(said)


def test_what_a_late_rank_always_does_is_its_cause(tmp_path: Path) -> None:
    """Rank 0 stores all the time, rank 1 comes 10 ms after it began: in the waits it stores no
    more than elsewhere, but nobody else does."""
    run = simulate(seed=1, size=2, steps=0)
    for step in range(60):
        start = 10_000_000 + step * 30_200_000
        entered = (start + 30_000_000, start + 10_000_000)
        run.rows[0].append(Row("range", "LMCacheEngine.store", start, start + 30_200_000))
        run.rows[1].append(Row("kernel", "gemm_0", start, entered[1]))
        for rank, at in enumerate(entered):
            end = entered[0] + 100_000
            run.rows[rank].append(Row("collective", "all_gather", at, end, "all_gather", 0, step))
    files, _ = write_kineto(run, tmp_path)
    profile, _, _, _ = read(files, (), CLEAR)
    (finding,) = late_in_profile.judge(profile).findings
    assert (finding.rank, finding.cause) == (0, "store")
