"""Two runs differ only where their intervals say so, and too few answers say nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from runbooks.cli import exit_codes
from runbooks.cli.main import main
from runbooks.replay import compare


def _drawn(seed: int, shift_s: float = 0.0) -> list[float]:
    draw = random.Random(seed)
    return [draw.expovariate(1) + shift_s for _ in range(80)]


def _result(path: Path, ttfts_s: list[float]) -> str:
    path.write_text(json.dumps({"requests": [{"outcome": "ok", "ttft_s": t} for t in ttfts_s]}))
    return str(path)


def test_a_slower_run_is_called_slower_and_the_other_way_faster() -> None:
    a, b = _drawn(1), _drawn(2, 1.0)
    assert {d.word for d in compare.differences(a, b)} == {"slower"}
    assert {d.word for d in compare.differences(b, a)} == {"faster"}


def test_two_runs_of_one_kind_show_no_difference() -> None:
    found = compare.differences(_drawn(1), _drawn(3))
    assert {d.word for d in found} == {"no difference seen"}
    assert found == compare.differences(_drawn(1), _drawn(3))


def test_few_answers_cannot_tell() -> None:
    found = compare.differences([1.0] * 19, [9.0] * 80)
    assert {d.word for d in found} == {"cannot tell"}


def test_the_command_names_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = _result(tmp_path / "a", _drawn(1)), _result(tmp_path / "b", _drawn(2, 1.0))
    assert main(["replay", "--compare", a, b]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "A: 80 of 80 answered" in out
    assert out.count(": slower") == 3


def test_the_command_refuses_a_run_without_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = _result(tmp_path / "a", _drawn(1))
    b = tmp_path / "b"
    b.write_text('{"requests": [{"outcome": "timeout", "ttft_s": null}]}')
    assert main(["replay", "--compare", a, str(b)]) == exit_codes.USAGE
    assert capsys.readouterr().err.count("\n") == 1
