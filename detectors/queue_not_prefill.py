"""queue-not-prefill: first tokens come late because requests queue, and not because steps stall."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.moved import Moved, alive_with, moved
from detectors.rule import Answer, Rule, whole_group, window_of
from exporters.snapshot import Engine, Evidence, Finding, Snapshot

NAME = "queue-not-prefill"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Requests wait in every picture, first tokens take 30 s and more, at most 30% of that is the
    steps of their own prompts, and no rank costs the others 5% of the wall: what is missing is
    capacity, not speed."""
    for scheduler in alive_with(engine, "scheduler"):
        if scheduler.gauges.get("requests_waiting", 0) < t.QUEUE_WAITING:
            continue
        movement = moved(scheduler, snapshot)
        if movement is None:
            return Answer(again=True)
        waiting = min(
            movement.before.gauges.get("requests_waiting", 0),
            movement.after.gauges.get("requests_waiting", 0),
        )
        firsts, ttft_seconds = _first_tokens(movement)
        if waiting < t.QUEUE_WAITING or firsts < t.QUEUE_FIRST_TOKENS:
            continue
        own = _step_seconds(engine, snapshot) / firsts
        queue_share = 1 - min(1.0, own / ttft_seconds) if ttft_seconds else 0.0
        if ttft_seconds < t.QUEUE_TTFT_SECONDS or queue_share < t.QUEUE_SHARE:
            continue
        if _is_stalled(engine):
            continue
        return Answer((_finding(engine, waiting, ttft_seconds, queue_share),))
    return Answer()


def _first_tokens(movement: Moved) -> tuple[int, float]:
    """How many came between the pictures, and after what time on average."""
    names = [n for n in movement.after.counters if n.startswith("ttft_")]
    count = movement.by(*(n for n in names if "_bucket_" in n))
    nanoseconds = movement.by(*(n for n in names if n.endswith("_nanoseconds")))
    return count, nanoseconds / 1e9 / count if count else 0.0


def _step_seconds(engine: Engine, snapshot: Snapshot) -> float:
    """Time in steps between the pictures, of the busiest worker."""
    movements = (moved(p, snapshot) for p in alive_with(engine, "worker"))
    return max((m.by("step_nanoseconds") / 1e9 for m in movements if m is not None), default=0.0)


def _is_stalled(engine: Engine) -> bool:
    group = whole_group(engine)
    if group is None or not group.seconds:
        return False
    end = group.seconds[-1].second
    window = window_of(group.seconds, end - t.STRAGGLER_WINDOW_SECONDS, end, len(group.ranks))
    return bool(window.wall_seconds) and window.most_lost_share() >= t.LOST_WALL_SHARE


def _finding(engine: Engine, waiting: int, ttft_seconds: float, queue_share: float) -> Finding:
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"first tokens take {ttft_seconds:.0f} s because {waiting} requests queue: "
        f"{queue_share:.0%} of that is waiting, and no rank stalls",
        engine_id=engine.engine_id,
        evidence=(
            Evidence(
                "queue_share",
                queue_share,
                t.QUEUE_SHARE,
                "ratio",
                f"{queue_share:.0%} of the time to the first token is not in steps "
                f"(limit {t.QUEUE_SHARE:.0%})",
            ),
            Evidence(
                "waiting_requests",
                float(waiting),
                float(t.QUEUE_WAITING),
                "",
                f"at least {waiting} requests wait for their first step",
            ),
        ),
        confidence=0.8,
    )


RULE = Rule(NAME, ("pages",), judge)
