"""Judges a run's results against limits, each with the margin that is left."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final
from xml.etree import ElementTree

# The limits that the replayed deployment had to hold: seconds to the first token, share answered.
POST_LIMITS: Final[Mapping[str, float]] = {
    "ttft_p50_s": 30.0,
    "ttft_p90_s": 70.0,
    "ttft_mean_s": 30.0,
    "success_share": 1.0,
}


class LimitsError(ValueError):
    """Limits or results that cannot be judged: one line."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One limit: what was measured (None: nothing was), and the margin, negative when failed."""

    name: str
    limit: float
    measured: float | None

    @property
    def margin(self) -> float | None:
        """How far inside the limit, in the limit's unit; a latency must stay below its limit."""
        if self.measured is None:
            return None
        if self.name == "success_share":
            return self.measured - self.limit
        return self.limit - self.measured

    @property
    def passed(self) -> bool:
        """A limit without a measurement is not passed."""
        margin = self.margin
        return margin is not None and (margin >= 0 if self.name == "success_share" else margin > 0)


def quantile(values: Sequence[float], q: float) -> float:
    """The value at share `q` of `values` (not empty), by nearest rank: one that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def judge(ttfts_s: Sequence[float | None], limits: Mapping[str, float]) -> list[Verdict]:
    """One verdict a limit; a request without a first token is None and counts as failed."""
    seen = [value for value in ttfts_s if value is not None]
    measured: dict[str, float] = {}
    if ttfts_s:
        measured["success_share"] = len(seen) / len(ttfts_s)
    if seen:
        measured["ttft_p50_s"] = quantile(seen, 0.5)
        measured["ttft_p90_s"] = quantile(seen, 0.9)
        measured["ttft_mean_s"] = fmean(seen)
    return [Verdict(name, limit, measured.get(name)) for name, limit in limits.items()]


def read_limits(path: Path) -> dict[str, float]:
    """The limits of a JSON object, by the names of POST_LIMITS; raises LimitsError."""
    data = _object(path)
    for name, value in data.items():
        if name not in POST_LIMITS:
            raise LimitsError(f"{path}: {name}: unknown limit; take {', '.join(POST_LIMITS)}")
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise LimitsError(f"{path}: {name}: must be a number from 0")
    if not data:
        raise LimitsError(f"{path}: holds no limit; take {', '.join(POST_LIMITS)}")
    return {name: float(value) for name, value in data.items()}


def junit(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a JUnit document: one test case a limit."""
    failed = [verdict for verdict in verdicts if not verdict.passed]
    suite = ElementTree.Element(
        "testsuite",
        name="stallscope replay",
        tests=str(len(verdicts)),
        failures=str(len(failed)),
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname="replay", name=verdict.name)
        if not verdict.passed:
            ElementTree.SubElement(case, "failure", message=text(verdict))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def text(verdict: Verdict) -> str:
    """One line: the limit, what was measured, the margin."""
    word = "pass" if verdict.passed else "FAIL"
    if verdict.measured is None or verdict.margin is None:
        return f"{word} {verdict.name}: nothing measured, limit {verdict.limit:g}"
    return (
        f"{word} {verdict.name}: {verdict.measured:.4g}, limit {verdict.limit:g}, "
        f"margin {verdict.margin:+.4g}"
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LimitsError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise LimitsError(f"{path}: not JSON") from None
    if not isinstance(data, dict):
        raise LimitsError(f"{path}: not a JSON object")
    return data
