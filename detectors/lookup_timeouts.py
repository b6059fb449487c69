"""lookup-timeouts: lookups end exactly at a configured timeout: each request waits it out."""

from __future__ import annotations

from dataclasses import dataclass

from detectors import thresholds as t
from detectors.pending import alive
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Operation, Process, Snapshot

NAME = "lookup-timeouts"


@dataclass(frozen=True, slots=True)
class Plateau:
    """Lookups that lasted as long as one configured timeout, and those a little off it."""

    timeout_seconds: float
    on: tuple[Operation, ...]
    beside: int
    lookups: int

    @property
    def density(self) -> float:
        """How many times as many there are on it as beside it, by width."""
        # Nothing beside counts as one: a few calls are no infinite ratio.
        return len(self.on) * t.PLATEAU_FLANKS / max(self.beside, 1)


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """A plateau within 5% of a configured timeout at 5 times the density beside it."""
    findings = []
    few = ""
    for process in alive(engine):
        plateau = _plateau(process, snapshot.now_seconds)
        if plateau is None:
            continue
        if len(plateau.on) < t.PLATEAU_LOOKUPS:
            few = (
                f"{len(plateau.on)} of {plateau.lookups} lookups took "
                f"{plateau.timeout_seconds:g} s, a configured timeout; needs {t.PLATEAU_LOOKUPS}"
            )
        elif plateau.density >= t.PLATEAU_DENSITY:
            findings.append(_finding(engine, process, plateau, snapshot.now_seconds))
    if few and not findings:
        return Answer(abstained=few, reason=reasons.TOO_FEW)
    return Answer(tuple(findings))


def _plateau(process: Process, now_seconds: float) -> Plateau | None:
    """The configured timeout that the most lookups of the window ended at."""
    edge = t.PLATEAU_WIDTH * (1 + t.PLATEAU_FLANKS)
    recent = [
        o
        for o in process.operations
        if o.kind == "lookup" and now_seconds - o.end_seconds <= t.PLATEAU_WINDOW_SECONDS
    ]
    timeouts = process.info.get("timeouts")
    candidates = []
    for timeout in set(timeouts.values()) if isinstance(timeouts, dict) else ():
        if not isinstance(timeout, int | float) or timeout <= 0:
            continue
        off = [abs((o.end_seconds - o.start_seconds) / timeout - 1) for o in recent]
        on = tuple(o for o, by in zip(recent, off, strict=True) if by <= t.PLATEAU_WIDTH)
        beside = sum(t.PLATEAU_WIDTH < by <= edge for by in off)
        if on and now_seconds - on[-1].end_seconds <= t.PLATEAU_RECENT_TIMEOUTS * timeout:
            candidates.append(Plateau(timeout, on, beside, len(recent)))
    return max(candidates, key=lambda p: len(p.on), default=None)


def _finding(engine: Engine, process: Process, plateau: Plateau, now_seconds: float) -> Finding:
    count, share = len(plateau.on), len(plateau.on) / plateau.lookups
    name = next(
        name for name, value in _timeouts(process).items() if value == plateau.timeout_seconds
    )
    where = f"rank {process.rank}" if process.rank is not None else "the scheduler"
    return Finding(
        id=NAME,
        severity="critical" if share >= t.PLATEAU_CRITICAL_SHARE else "warning",
        summary=f"{count} of {plateau.lookups} lookups of {where} waited out their timeout of "
        f"{plateau.timeout_seconds:g} s and count as misses",
        rank=process.rank,
        engine_id=engine.engine_id,
        since_seconds=now_seconds - min(o.start_seconds for o in plateau.on),
        evidence=(
            Evidence(
                "plateau_density",
                plateau.density,
                t.PLATEAU_DENSITY,
                "ratio",
                f"{count} lookups within {t.PLATEAU_WIDTH:.0%} of {plateau.timeout_seconds:g} s "
                f"({name}), {plateau.beside} in the flanks beside it: {plateau.density:.1f} times "
                f"as dense (limit {t.PLATEAU_DENSITY:g})",
            ),
            Evidence(
                "lookup_timeouts",
                process.counters.get("lookup_timeouts", 0),
                None,
                "",
                f"{process.counters.get('lookup_timeouts', 0)} lookups counted as timed out since "
                "the process began",
            ),
        ),
        confidence=0.9,
        cause=name,
    )


def _timeouts(process: Process) -> dict[str, object]:
    listed = process.info.get("timeouts")
    return listed if isinstance(listed, dict) else {}


RULE = Rule(NAME, ("pages",), judge)
