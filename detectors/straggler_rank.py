"""straggler-rank: one rank comes last to the collectives, and the others wait for it."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.rule import (
    Answer,
    Rule,
    Window,
    binomial_tail,
    joined_share,
    onset,
    severity_of_loss,
    whole_group,
    window_of,
)
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Group, Snapshot

NAME = "straggler-rank"
_SPAN_SECONDS = t.STRAGGLER_WINDOW_SECONDS + t.STRAGGLER_WINDOWS - 1


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Design, Definitions: last in a share >= 0.6 (0.8 at W = 2) of >= 50 symmetric collectives,
    p < 1e-3 against 1/W, charged >= 5% of the wall, in 3 windows of 30 s running."""
    now_seconds = snapshot.now_seconds
    group = whole_group(engine)
    if group is None:
        return Answer(
            abstained="no group of all ranks has a collective on record", reason=reasons.TOO_FEW
        )
    if group.unseen_reason:
        return Answer(
            abstained=f"the ranks' collectives cannot be joined: {group.unseen_reason}",
            reason=group.unseen_reason,
        )
    end = int(now_seconds)
    observed = sum(1 for s in group.seconds if s.second < end)
    if observed < _SPAN_SECONDS:
        return Answer(
            abstained=f"saw {observed} s of collectives, needs {_SPAN_SECONDS} s",
            reason=reasons.TOO_FEW,
        )
    windows = [
        window_of(
            group.seconds, end - shift - t.STRAGGLER_WINDOW_SECONDS, end - shift, len(group.ranks)
        )
        for shift in range(t.STRAGGLER_WINDOWS)
    ]
    if windows[0].most_lost_share() < t.LOST_WALL_SHARE:
        return Answer()  # an idle engine too: nobody waits, whoever comes last
    if windows[0].count < t.STRAGGLER_COLLECTIVES:
        return Answer(
            abstained=f"{windows[0].count} collectives in {t.STRAGGLER_WINDOW_SECONDS} s, "
            f"needs {t.STRAGGLER_COLLECTIVES}",
            reason=reasons.TOO_FEW,
        )
    last = windows[0].last_count
    position = last.index(max(last))
    if not all(_is_late(window, position) for window in windows):
        return Answer()
    return Answer((_finding(engine, group, windows[0], position, now_seconds),))


def last_share_limit(world_size: int) -> float:
    """The share of last arrivals from which a rank counts as late."""
    return t.STRAGGLER_LAST_SHARE_TWO_RANKS if world_size == 2 else t.STRAGGLER_LAST_SHARE


def _is_late(window: Window, position: int) -> bool:
    size = len(window.last_count)
    return (
        window.count >= t.STRAGGLER_COLLECTIVES
        and window.last_count[position] >= last_share_limit(size) * window.count
        and window.lost_share(position) >= t.LOST_WALL_SHARE
        and binomial_tail(window.last_count[position], window.count, 1 / size) < t.STRAGGLER_P_VALUE
    )


def _finding(
    engine: Engine, group: Group, window: Window, position: int, now_seconds: float
) -> Finding:
    rank, size = group.ranks[position], len(group.ranks)
    limit = last_share_limit(size)
    share = window.last_count[position] / window.count
    lost = window.lost_share(position)
    chance = binomial_tail(window.last_count[position], window.count, 1 / size)
    # Halfway between chance and the limit: a second above it speaks for the fault.
    middle = (limit + 1 / size) / 2
    began = onset([s.last_count[position] - middle * s.count for s in group.seconds])
    since = now_seconds - group.seconds[began].second if began < len(group.seconds) else 0.0
    return Finding(
        id=NAME,
        severity=severity_of_loss(lost),
        summary=f"rank {rank} comes last to {share:.0%} of the collectives; "
        f"the other {size - 1} lose {lost:.0%} of their time waiting for it",
        rank=rank,
        engine_id=engine.engine_id,
        since_seconds=since,
        evidence=(
            Evidence(
                "last_share",
                share,
                limit,
                "ratio",
                f"last in {window.last_count[position]} of {window.count} collectives of group "
                f"{group.name} over {window.wall_seconds} s ({share:.0%}, limit {limit:.0%})",
            ),
            Evidence(
                "chance",
                chance,
                t.STRAGGLER_P_VALUE,
                "probability",
                f"by chance (1 in {size}) that has p = {chance:.1g} "
                f"(limit {t.STRAGGLER_P_VALUE:g})",
            ),
            Evidence(
                "lost_wall_share",
                lost,
                t.LOST_WALL_SHARE,
                "ratio",
                f"each of the others waited {lost * window.wall_seconds:.2f} s for it in "
                f"{window.wall_seconds} s ({lost:.1%} of the wall, limit {t.LOST_WALL_SHARE:.0%})",
            ),
        ),
        confidence=round(0.95 * joined_share(group), 2),
    )


RULE = Rule(NAME, ("pages",), judge)
