"""The shape of a rule, and what the rules share: choosing a group, chance, and onset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from detectors import thresholds
from exporters import reasons
from exporters.snapshot import (
    CollectiveSecond,
    Engine,
    Finding,
    Group,
    Severity,
    ShardQuestion,
    Snapshot,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rule says of one engine: findings, or why it cannot tell (line, enumerated name);
    `again` where another look may decide what is suspicious now."""

    findings: tuple[Finding, ...] = ()
    abstained: str = ""
    reason: str = ""
    again: bool = False


def no_questions(engine: Engine, snapshot: Snapshot) -> tuple[ShardQuestion, ...]:
    """Most rules need no more of a shard than its INFO."""
    return ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A pure function of one engine, applied to every engine of a Snapshot.

    `decidable_from` names the sources that can decide it; `ask` what it wants to know of the
    shards in the next picture.
    """

    name: str
    decidable_from: tuple[str, ...]
    judge: Callable[[Engine, Snapshot], Answer]
    ask: Callable[[Engine, Snapshot], tuple[ShardQuestion, ...]] = no_questions

    def __call__(self, snapshot: Snapshot) -> Verdict:
        if not snapshot.engines:
            return Verdict(self.name, abstained="no engine is seen", reason=reasons.NOT_ASKED)
        answers = [(e, self.judge(e, snapshot)) for e in snapshot.engines]
        several = len(answers) > 1
        return Verdict(
            rule=self.name,
            findings=tuple(f for _, answer in answers for f in answer.findings),
            abstained="; ".join(
                f"engine {engine.engine_id}: {answer.abstained}" if several else answer.abstained
                for engine, answer in answers
                if answer.abstained
            ),
            reason=next((answer.reason for _, answer in answers if answer.abstained), ""),
            again=any(answer.again for _, answer in answers),
        )

    def questions(self, snapshot: Snapshot) -> tuple[ShardQuestion, ...]:
        """What to ask the shards before the next picture."""
        return tuple(q for engine in snapshot.engines for q in self.ask(engine, snapshot))


@dataclass(frozen=True, slots=True)
class Window:
    """Sums of a group's collectives over consecutive whole seconds, by position in its ranks."""

    wall_seconds: int
    count: int
    charged_seconds: tuple[float, ...]
    last_count: tuple[int, ...]

    def lost_share(self, position: int) -> float:
        """The share of the wall that the group lost to one rank: the wait charged to it is in
        rank-seconds, and W - 1 ranks wait at a time."""
        others = len(self.last_count) - 1
        return self.charged_seconds[position] / others / self.wall_seconds

    def most_lost_share(self) -> float:
        """The largest lost share of any one rank."""
        return max(self.lost_share(i) for i in range(len(self.last_count)))


def window_of(seconds: Iterable[CollectiveSecond], begin: int, end: int, size: int) -> Window:
    """Sum the seconds in [begin, end) of a group of `size` ranks."""
    chosen = [s for s in seconds if begin <= s.second < end]
    return Window(
        wall_seconds=len(chosen),
        count=sum(s.count for s in chosen),
        charged_seconds=tuple(sum(s.charged_seconds[i] for s in chosen) for i in range(size)),
        last_count=tuple(sum(s.last_count[i] for s in chosen) for i in range(size)),
    )


def whole_group(engine: Engine) -> Group | None:
    """The group of all the engine's ranks with the most symmetric collectives in memory."""
    widest = max((len(g.ranks) for g in engine.groups), default=0)
    size = engine.world_size or widest
    candidates = [g for g in engine.groups if len(g.ranks) == size]
    return max(candidates, key=lambda g: sum(s.count for s in g.seconds), default=None)


def joined_share(group: Group) -> float:
    """How much of the group's collectives could be joined, in [0, 1]."""
    joined = sum(total.count for total in group.totals)
    return joined / (joined + group.unjoined) if joined else 0.0


def severity_of_loss(lost_share: float) -> Severity:
    """Critical from LOST_WALL_SHARE_CRITICAL on."""
    return "critical" if lost_share >= thresholds.LOST_WALL_SHARE_CRITICAL else "warning"


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """P(X >= successes) for X ~ Binomial(trials, probability); exact to about 1e-12."""
    if successes <= 0:
        return 1.0
    if successes > trials:
        return 0.0
    log_term = (
        math.lgamma(trials + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(trials - successes + 1)
        + successes * math.log(probability)
        + (trials - successes) * math.log1p(-probability)
    )
    term = math.exp(log_term)
    total = term
    odds = probability / (1 - probability)
    for k in range(successes, trials):
        term *= (trials - k) / (k + 1) * odds
        total += term
        if term < total * 1e-16:
            break
    return min(1.0, total)


def onset(scores: Sequence[float]) -> int:
    """Where a change began: the index whose suffix sum is largest (CUSUM's estimate).

    `scores` are positive where the fault shows and negative where it does not, oldest first.
    """
    best, best_index, total = 0.0, len(scores), 0.0
    for index in range(len(scores) - 1, -1, -1):
        total += scores[index]
        if total > best:
            best, best_index = total, index
    return best_index
