"""Limits pass and fail at their edges, with margins; a result without data never passes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from runbooks.replay import limits


def _by_name(values: list[float | None]) -> dict[str, limits.Verdict]:
    return {verdict.name: verdict for verdict in limits.judge(values, limits.POST_LIMITS)}


def test_all_within() -> None:
    verdicts = _by_name([1.0, 2.0, 9.0])
    assert all(verdict.passed for verdict in verdicts.values())
    assert verdicts["ttft_p50_s"].margin == 28
    assert verdicts["ttft_mean_s"].measured == 4


def test_a_latency_at_its_limit_fails() -> None:
    assert not _by_name([30.0])["ttft_p50_s"].passed


def test_a_failed_request_costs_success_and_no_percentile() -> None:
    verdicts = _by_name([1.0, None])
    assert not verdicts["success_share"].passed
    assert verdicts["success_share"].margin == -0.5
    assert verdicts["ttft_p90_s"].measured == 1


def test_nothing_answered_passes_nothing() -> None:
    assert not any(verdict.passed for verdict in _by_name([None]).values())


def test_junit_names_the_failed() -> None:
    root = ElementTree.fromstring(limits.junit(limits.judge([40.0], limits.POST_LIMITS)))
    assert root.get("failures") == "2"
    assert len(root.findall("testcase")) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"p50": 1}', '{"ttft_p50_s": -1}'])
def test_bad_limits_get_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(limits.LimitsError, match=r"limits\.json"):
        limits.read_limits(path)
