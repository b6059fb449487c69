"""below-break-even: the cache tier delivers less to a prompt than computing it again would take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from exporters import model, reasons
from exporters.snapshot import Engine, Evidence, Finding, Snapshot

NAME = "below-break-even"


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the median of a population lies, at 90%, by its sample's order alone."""

    low: float
    middle: float
    high: float


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Loads of 16 chunks and more that were alone, against B* = s R from prompts computed while
    none ran. Both are intervals: where they overlap nothing is said to be worse. Silent while there
    are too few of either, since most engines never load and compute apart."""
    loads = model.lone_loads(engine, snapshot.engines, t.BREAK_EVEN_CHUNKS)
    rates = engine.model.cold_rates
    if len(loads) < t.BREAK_EVEN_LOADS or len(rates) < t.BREAK_EVEN_LOADS:
        return Answer()
    tier = interval([load.bytes_per_second for load in loads])
    line = interval(
        [model.break_even_bytes_per_second(engine.model.token_bytes, rate) for rate in rates]
    )
    if tier.high < line.low:
        return Answer((_finding(engine, tier, line, loads),))
    if tier.low <= line.high and tier.middle < line.middle:
        return Answer(
            abstained=f"the tier gives a prompt {_gb(tier)}, break-even is {_gb(line)}: they "
            "overlap",
            reason=reasons.CANNOT_TELL,
        )
    return Answer()


def interval(values: Sequence[float]) -> Interval:
    """By the sign test: the ranks between which the median lies with 90%; of few values all."""
    ordered = sorted(values)
    count = len(ordered)
    reach = NormalDist().inv_cdf(0.95) * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach) - 1)
    high = min(count - 1, math.ceil(count / 2 + reach))
    return Interval(ordered[low], median(ordered), ordered[high])


def _finding(
    engine: Engine, tier: Interval, line: Interval, loads: Sequence[model.LoneLoad]
) -> Finding:
    share = tier.middle / line.middle
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"a cache hit is slower than computing the prompt: the tier gives one prompt "
        f"{share:.0%} of break-even",
        engine_id=engine.engine_id,
        evidence=(
            Evidence(
                "bytes_per_second",
                tier.middle,
                line.middle,
                "bytes per second",
                f"{_gb(tier)} over {len(loads)} loads of {t.BREAK_EVEN_CHUNKS} chunks and more "
                f"that were alone; B* = s R is {_gb(line)}",
            ),
            Evidence(
                "token_bytes",
                engine.model.token_bytes,
                None,
                "bytes",
                f"s = {engine.model.token_bytes / 1e3:.1f} kB a token; R from "
                f"{len(engine.model.cold_rates)} stretches without a load",
            ),
        ),
        confidence=0.9,
    )


def _gb(found: Interval) -> str:
    low, high = found.low / 1e9, found.high / 1e9
    digits = 2 if high >= 0.1 else 4
    return f"{low:.{digits}f} to {high:.{digits}f} GB/s"


RULE = Rule(NAME, ("pages",), judge)
