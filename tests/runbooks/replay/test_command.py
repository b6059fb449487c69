"""`stallscope replay check` answers with margins, JUnit, JSON and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runbooks.cli import exit_codes
from runbooks.cli.main import main


def _result(folder: Path, ttft_s: float) -> str:
    path = folder / "run.json"
    path.write_text(json.dumps({"requests": [{"outcome": "ok", "ttft_s": ttft_s}]}))
    return str(path)


def test_check_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "check", _result(tmp_path, 1.0)]) == exit_codes.OK
    assert "pass ttft_p50_s: 1, limit 30, margin +29" in capsys.readouterr().out


def test_check_fails_by_its_own_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "limits.json"
    own.write_text('{"ttft_p90_s": 0.5}')
    junit = tmp_path / "run.xml"
    line = ["replay", "check", _result(tmp_path, 1.0), "--limits", str(own), "--json"]
    assert main([*line, "--junit", str(junit)]) == exit_codes.CRITICAL
    report = json.loads(capsys.readouterr().out)
    assert [row["margin"] for row in report["limits"]] == [-0.5]
    assert 'failures="1"' in junit.read_text()


def test_a_missing_file_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "check", "/nowhere/run.json"]) == exit_codes.USAGE
    assert capsys.readouterr().err.count("\n") == 1
