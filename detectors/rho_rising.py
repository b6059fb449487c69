"""rho-rising: prompts come ever faster than hits are worked off, and the queue is about to grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from detectors.trend import Line, theil_sen
from exporters import model, reasons
from exporters.snapshot import Engine, Evidence, Finding, ModelPoint, Snapshot

NAME = "rho-rising"
# The trend is looked at again as it was so long ago: it must have stood all the time.
_LOOKS = 4
# Two points closer than this have too few requests between them.
_LEAST_BIN_SECONDS = 7.0


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """rho is above 0.6, and in each look of the last 3 minutes the slower 90% bound of its trend
    over 15 minutes reaches 1 within 30. Silent while rho cannot be said, which the exporter's
    `stallscope_model_rho_evaluable` tells; a rho that is high and not yet long seen is said."""
    points = engine.model.points
    rho = None if engine.model.unseen else model.rho_of(points)
    if rho is None:
        return Answer()
    lines = []
    for look in range(_LOOKS):
        before = snapshot.now_seconds - look * t.RHO_HELD_SECONDS / (_LOOKS - 1)
        line = _sooner([p for p in points if p.at_seconds <= before + _LEAST_BIN_SECONDS])
        if line is None:
            if rho.rho <= t.RHO_WARNING:
                return Answer()
            needs = model.LEAST_SECONDS + t.RHO_HELD_SECONDS
            seen = points[-1].at_seconds - points[0].at_seconds
            return Answer(
                abstained=f"rho is {rho.rho:.2f}; saw {seen:.0f} s of its requests, a trend needs "
                f"{needs:.0f} s",
                reason=reasons.TOO_FEW,
            )
        lines.append(line)
    now = lines[0]
    if now.level <= t.RHO_WARNING or any(_to_one(li) > t.RHO_TO_ONE_SECONDS for li in lines):
        return Answer()
    return Answer((_finding(engine, rho, lines),))


def _sooner(points: Sequence[ModelPoint]) -> Line | None:
    """Of the trends over 15 and over 5 minutes the one that reaches 1 sooner: a long calm before
    would hide what began some minutes ago."""
    lines = [
        line
        for seconds in (t.RHO_WINDOW_SECONDS, t.RHO_SHORT_WINDOW_SECONDS)
        if (line := _trend(points, seconds)) is not None
    ]
    return min(lines, key=_to_one, default=None)


def _trend(points: Sequence[ModelPoint], window_seconds: float) -> Line | None:
    """Of rho between the points of a window: what came in each time between two, times S over the
    2 minutes up to there, since a few prompts say little of S."""
    if not points:
        return None
    first_known = next((i for i in range(1, len(points) + 1) if model.rho_of(points[:i])), None)
    if first_known is None:
        return None
    begin = points[-1].at_seconds - window_seconds
    at_seconds, values = [], []
    for i, (a, b) in enumerate(pairwise(points), start=2):
        if a.at_seconds < begin or b.at_seconds - a.at_seconds < _LEAST_BIN_SECONDS:
            continue
        rho = model.rho_of(points[: max(i, first_known)])
        if rho is not None:
            offered = (b.admitted - a.admitted) / (b.at_seconds - a.at_seconds)
            at_seconds.append((a.at_seconds + b.at_seconds) / 2)
            values.append(model.utilisation(offered, rho.service_seconds))
    return theil_sen(at_seconds, values, t.RHO_CONFIDENCE)


def _to_one(line: Line, is_slow: bool = True) -> float:
    """Seconds until the line reaches 1, at its slower bound or its own slope; infinite if never."""
    slope = line.slope_low if is_slow else line.slope
    if line.level >= 1:
        return 0.0
    return (1 - line.level) / slope if slope > 0 else math.inf


def _finding(engine: Engine, rho: model.Rho, lines: Sequence[Line]) -> Finding:
    now = lines[0]
    slow, likely = _to_one(now), _to_one(now, is_slow=False)
    is_full = now.level >= 1
    what = (
        "hits queue without end"
        if is_full
        else f"at this pace it reaches 1 in {likely / 60:.0f} min"
    )
    return Finding(
        id=NAME,
        severity="critical" if is_full else "warning",
        summary=f"the engine's utilisation is {now.level:.2f} and rises: {what}",
        engine_id=engine.engine_id,
        since_seconds=t.RHO_HELD_SECONDS,
        evidence=(
            Evidence(
                "rho",
                now.level,
                t.RHO_WARNING,
                "ratio",
                f"rho {now.level:.2f} on the trend (limit {t.RHO_WARNING:g}): "
                f"{rho.offered_per_second:.2f} prompts/s x {rho.service_seconds:.3f} s in steps "
                f"for each, over {rho.seconds:.0f} s",
            ),
            Evidence(
                "seconds_to_one",
                slow,
                t.RHO_TO_ONE_SECONDS,
                "seconds",
                f"1 is reached in {slow / 60:.0f} min at the latest (slower bound at "
                f"{t.RHO_CONFIDENCE:.0%}, limit {t.RHO_TO_ONE_SECONDS / 60:.0f} min), and was so "
                f"for {t.RHO_HELD_SECONDS / 60:.0f} min",
            ),
        ),
        confidence=0.85,
    )


RULE = Rule(NAME, ("pages",), judge)
