"""A bar is short only when it misses by more than the run's own noise, and then the bench fails."""

from __future__ import annotations

import pytest

from benchmarks.report import Bar, Report


@pytest.mark.parametrize(
    ("figure", "limit", "at_most", "noise", "verdict"),
    [
        (1.0, 1.0, True, 0.0, "ok"),
        (1.1, 1.0, True, 0.0, "short"),
        (1.1, 1.0, True, 0.2, "below-noise"),
        (0.9, 1.0, False, 0.0, "short"),
        (0.9, 1.0, False, 0.11, "below-noise"),
        (1.2, 1.0, False, 0.0, "ok"),
    ],
)
def test_verdicts(figure: float, limit: float, at_most: bool, noise: float, verdict: str) -> None:
    assert Bar("b", figure, limit, at_most=at_most, noise=noise).verdict == verdict


def test_a_short_bar_fails_the_bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.report.QUICK", True)
    report = Report("name", ("what", "us"), rows=[("ours", "1.0"), ("rival", "10.0")])
    report.bars = [Bar("first", 1, 2, "us")]
    assert report.finish() == 0
    report.bars.append(Bar("second", 3, 2, "us"))
    assert report.finish() == 1
    out = capsys.readouterr().out
    assert "bar: second: 3 <= 2 us: short" in out
    assert "hardware: " in out
