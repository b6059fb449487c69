"""`--pages DIR`: the folder is the user's, and only what the run put there goes with it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.lab.runs import LabRun, leftovers, run, start

pytest.importorskip("torch")
pytest.importorskip("lmcache")


def with_pages(tmp_path: Path, *arguments: str) -> tuple[Path, tuple[str, ...]]:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "other").touch()
    return pages, ("--ranks", "2", "--pages", str(pages), *arguments)


def test_a_whole_run_takes_its_pages_away(tmp_path: Path) -> None:
    pages, arguments = with_pages(tmp_path, "--seconds", "5", "--shards", "2")
    result = run(tmp_path, *arguments)
    assert result["shards"] == 2
    assert all(row["store_bytes"] > 0 for row in result["per_rank"])
    assert [path.name for path in pages.iterdir()] == ["other"]


@pytest.mark.parametrize("after_seconds", [2.0, 8.0])
def test_so_does_one_whose_parent_was_killed(tmp_path: Path, after_seconds: float) -> None:
    pages, arguments = with_pages(tmp_path, "--seconds", "60")
    lab: LabRun = start(tmp_path, *arguments)
    time.sleep(after_seconds)
    lab.process.send_signal(signal.SIGKILL)
    lab.process.communicate(timeout=30)
    assert leftovers(lab) == []
    assert [path.name for path in pages.iterdir()] == ["other"]
