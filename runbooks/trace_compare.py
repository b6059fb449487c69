"""Two profiles beside each other: what a change did to the waits, the GPUs and the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from detectors.kernel_waste import short_name
from exporters.profile import Profile
from runbooks.cli.findings_text import unseen_line
from runbooks.cli.terminal import Style
from runbooks.cli.trace_text import NOT_TOLD, clip, late_text, table
from runbooks.trace_report import SCHEMA, TraceReport, json_object

_MOST_KERNELS: Final = 6


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after; None where that side cannot tell it."""

    figure: str
    unit: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """After by before, where both are known and the first is not nothing."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, and both reports."""

    before: TraceReport
    after: TraceReport
    changes: tuple[Change, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types; the two reports whole, so that nothing has to be run again."""
        return json_object(
            {
                "schema": SCHEMA,
                "changes": [{**asdict(c), "ratio": c.ratio} for c in self.changes],
                "before": self.before.as_json(),
                "after": self.after.as_json(),
            }
        )


def compare(before: TraceReport, after: TraceReport) -> Comparison:
    """Every figure that either side has. Shares and times a call, not sums: the two windows need
    not be of one length."""
    return Comparison(before, after, tuple(_changes(before.profile, after.profile)))


def _changes(before: Profile, after: Profile) -> Iterator[Change]:
    yield Change("window", "s", before.wall_seconds or None, after.wall_seconds or None)
    yield Change("wait, share of the ranks' time", "%", _wait_share(before), _wait_share(after))
    yield Change("lost to the late rank", "%", _lost(before), _lost(after))
    for what, name in (("busy", "busy_seconds"), ("work", "work_seconds")):
        ranks = sorted({r.rank for r in (*before.ranks, *after.ranks)})
        for rank in ranks:
            sides = [_rank_share(p, rank, name) for p in (before, after)]
            if sides != [None, None]:
                yield Change(f"rank {rank} {what}", "%", *sides)
    for rank in sorted({r.rank for r in (*before.ranks, *after.ranks)}):
        rates = [_d2h_rate(p, rank) for p in (before, after)]
        if any(rates):
            yield Change(f"rank {rank} D2H", "GB/s of wall", *rates)
    known = {k.name: k for k in before.kernels}
    later = {k.name: k for k in after.kernels}
    heaviest = sorted(
        {**later, **known}, key=lambda n: -max(_share(known, n) or 0, _share(later, n) or 0)
    )
    for name in heaviest[:_MOST_KERNELS]:
        label = short_name(name)
        yield Change(f"{label}: GPU time", "%", _share(known, name), _share(later, name))
        one, two = known.get(name), later.get(name)
        yield Change(
            f"{label}: a call",
            "us",
            one.median_seconds * 1e6 if one else None,
            two.median_seconds * 1e6 if two else None,
        )


def _wait_share(profile: Profile) -> float | None:
    told = [r for r in profile.ranks if r.wait_seconds is not None and r.wall_seconds > 0]
    if not told:
        return None
    return 100 * sum(r.wait_seconds or 0 for r in told) / sum(r.wall_seconds for r in told)


def _lost(profile: Profile) -> float | None:
    return None if profile.late is None else 100 * profile.late.lost_share


def _rank_share(profile: Profile, rank: int, name: str) -> float | None:
    found = next((r for r in profile.ranks if r.rank == rank), None)
    value = getattr(found, name, None)
    if found is None or value is None or found.wall_seconds <= 0:
        return None
    return 100 * float(value) / found.wall_seconds


def _d2h_rate(profile: Profile, rank: int) -> float | None:
    found = next((r for r in profile.ranks if r.rank == rank), None)
    if found is None or found.busy_seconds is None or found.wall_seconds <= 0:
        return None
    return found.d2h_bytes / found.wall_seconds / 1e9


def _share(kernels: dict[str, Any], name: str) -> float | None:
    found = kernels.get(name)
    return None if found is None else 100 * float(found.gpu_share)


def compare_text(result: Comparison, style: Style) -> str:
    """The table, then each side's late rank and what it could not tell."""
    lines = []
    if result.before.answered or result.after.answered:
        rows = [
            (
                clip(change.figure, max(24, style.width - 48)),
                _number(change.before),
                _number(change.after),
                NOT_TOLD if change.ratio is None else f"x{change.ratio:.2f}",
                change.unit,
            )
            for change in result.changes
        ]
        lines = table(("", "before", "after", "change", ""), rows, left=(0, 4))
        lines.append("")
    for label, report in (("before", result.before), ("after", result.after)):
        if report.answered:
            late = report.profile.late
            text = late_text(late) if late else "cannot be told"
            lines += style.wrap(f"{label:<7} late rank: {text}", " " * 8, first="")
        lines += [
            f"{style.paint('yellow', 'unseen')}  {label}: {unseen_line(u)}" for u in report.unseen
        ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return NOT_TOLD if value is None else f"{value:.4g}"
