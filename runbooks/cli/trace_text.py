"""How a profile's answers read in a terminal: late rank first, then tables, then what is unseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from detectors.kernel_waste import short_name
from detectors.late_in_profile import doing_text
from exporters.profile import KernelUse, LateRank, Profile, RankProfile
from exporters.snapshot import Finding
from runbooks.cli.findings_text import unseen_line
from runbooks.cli.terminal import Style
from runbooks.library import page_names
from runbooks.trace_report import TraceReport

_COLOURS: Final = {"critical": "red", "warning": "yellow"}
_INDENT: Final = "  "
NOT_TOLD: Final = "-"
_MOST_KERNELS: Final = 8
_MOST_DOINGS: Final = 4
_GAPS: Final = 3


def trace_text(report: TraceReport, style: Style) -> str:
    """The whole report as text."""
    if not report.answered:
        return "\n".join(_unseen_lines(report, style))
    blocks = [_finding(f, style) for f in report.findings]
    blocks.append([_late_line(report.profile, style)])
    blocks.append(_ranks(report.profile))
    blocks.append(_waits(report.profile, style))
    blocks.append(_gaps(report.profile, style))
    blocks.append(_kernels(report.profile.kernels, style))
    blocks.append([*_unseen_lines(report, style), _seen(report, style)])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _unseen_lines(report: TraceReport, style: Style) -> list[str]:
    return [f"{style.paint('yellow', 'unseen')}   {unseen_line(u)}" for u in report.unseen]


def _seen(report: TraceReport, style: Style) -> str:
    files = report.recording.files
    kinds = ", ".join(sorted({f"{f.format} ({f.schema})" for f in files}))
    events = sum(f.events for f in files)
    ranks = len(report.profile.ranks)
    return (
        f"{style.paint('dim', 'seen')}     {len(files)} file{'s' * (len(files) != 1)}, {kinds}; "
        f"{ranks} rank{'s' * (ranks != 1)}, {events:,} events, {report.profile.wall_seconds:.3f} s"
    )


def _finding(finding: Finding, style: Style) -> list[str]:
    head = style.paint(_COLOURS.get(finding.severity, "bold"), finding.severity.upper())
    place = f", rank {finding.rank}" if finding.rank is not None else ""
    lines = [f"{head}  {style.paint('bold', finding.id + place)}"]
    lines += style.wrap(finding.summary, _INDENT)
    for evidence in finding.evidence:
        lines += style.wrap(evidence.text, _INDENT * 2, first=_INDENT + "- ")
    lines.append(f"{_INDENT}sure     {finding.confidence:.0%}")
    if finding.id in page_names():
        lines.append(f"{_INDENT}runbook  stallscope runbook {finding.id}")
    return lines


def _late_line(profile: Profile, style: Style) -> str:
    late = profile.late
    if late is None:
        return (
            "late rank  cannot be told"
            if not any(g.joined for g in profile.groups)
            else ("late rank  none: nobody waited")
        )
    text = late_text(late)
    lines = style.wrap(f"late rank  {text}", " " * 11, first="")
    doing = sorted(late.meanwhile, key=lambda d: -(d.share - d.base_share))[:_MOST_DOINGS]
    for d in doing:
        lines += style.wrap(f"meanwhile  {doing_text(d)}", " " * 11, first="")
    return "\n".join(lines)


def late_text(late: LateRank) -> str:
    """Which rank, how much, how sure; or that no rank stands out, and the nearest to it."""
    figures = (
        f"{late.charged_share:.0%} of the wait is for it, it is last to {late.last_share:.0%} of "
        f"the {late.collectives} collectives that hold most of the wait (p = {late.chance:.1g})"
    )
    basis = {
        True: "durations and starts agree",
        False: "durations and starts name different ranks",
        None: "by one basis only",
    }[late.agrees]
    if late.is_clear:
        return f"rank {late.rank}, sure to {late.confidence:.0%}: {figures}; {basis}"
    return f"none stands out; most is charged to rank {late.rank}: {figures}; {basis}"


def _ranks(profile: Profile) -> list[str]:
    head = ("rank", "busy", "work", "collectives", "wait ms", "D2H", "H2D")
    rows = [
        (
            str(r.rank),
            share(r.busy_seconds, r.wall_seconds),
            share(r.work_seconds, r.wall_seconds),
            str(r.collectives),
            milliseconds(r.wait_seconds),
            size(r.d2h_bytes) if r.busy_seconds is not None else NOT_TOLD,
            size(r.h2d_bytes) if r.busy_seconds is not None else NOT_TOLD,
        )
        for r in profile.ranks
    ]
    return table(head, rows)


def _waits(profile: Profile, style: Style) -> list[str]:
    told = [r for r in profile.ranks if r.wait_seconds is not None]
    if not told:
        return []
    head = ("rank", "wait ms", "by duration", "by skew", "apart", "charged ms", "last")
    rows = [
        (
            str(r.rank),
            milliseconds(r.wait_seconds),
            milliseconds(r.wait_by_duration_seconds),
            milliseconds(r.wait_by_skew_seconds),
            apart(r),
            milliseconds(r.charged_seconds),
            str(r.last_count),
        )
        for r in told
    ]
    lines = table(head, rows)
    for group in profile.groups:
        if group.joined:
            ops = ", ".join(f"{n} {op}" for op, n in sorted(group.ops.items()))
            named = f"group {group.name}: " if group.name else ""
            missing = f"; {group.unjoined} on some ranks only" if group.unjoined else ""
            clock = f"; no start skew: {group.clock}" if group.clock else ""
            lines += style.wrap(
                f"{named}{group.joined} joined over ranks {ranges(group.ranks)}: {ops}"
                f"{missing}{clock}",
                _INDENT,
                first="",
            )
    return lines


def ranges(numbers: Sequence[int]) -> str:
    """0-3, 6: sorted numbers with what follows on each other drawn together."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def apart(rank: RankProfile) -> str:
    """How far the two bases disagree, of the larger; "-" where there are not two."""
    one, two = rank.wait_by_duration_seconds, rank.wait_by_skew_seconds
    if one is None or two is None:
        return NOT_TOLD
    largest = max(one, two)
    return f"{abs(one - two) / largest:.0%}" if largest > 0 else "0%"


def _gaps(profile: Profile, style: Style) -> list[str]:
    found = sorted(
        ((gap, r.rank) for r in profile.ranks for gap in r.gaps), key=lambda g: -g[0].seconds
    )[:_GAPS]
    if not found:
        return []
    rows = [
        (
            str(rank),
            f"{gap.start_seconds * 1e3:.3f}",
            f"{gap.seconds * 1e3:.3f}",
            clip(gap.under or "(no range recorded)", style.width - 32),
        )
        for gap, rank in found
    ]
    return table(("rank", "at ms", "gap ms", "under"), rows, left=(3,))


def _kernels(kernels: Sequence[KernelUse], style: Style) -> list[str]:
    if not kernels:
        return []
    room = max(20, style.width - 50)
    rows = [
        (
            clip(short_name(k.name), room),
            f"{k.gpu_share:.1%}",
            str(k.calls),
            f"{k.median_seconds * 1e6:.1f}",
            f"{k.blocks:,}x{k.threads}" if k.blocks else NOT_TOLD,
            f"{k.bytes_per_second / 1e9:.3g}" if k.bytes_per_second else NOT_TOLD,
        )
        for k in kernels[:_MOST_KERNELS]
    ]
    return table(("on the GPUs", "time", "calls", "us", "grid", "GB/s"), rows, left=(0,))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()
) -> list[str]:
    """Columns as wide as their longest cell, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def share(part: float | None, whole: float) -> str:
    """A share of the wall, or "-"."""
    return NOT_TOLD if part is None or whole <= 0 else f"{part / whole:.1%}"


def milliseconds(seconds: float | None) -> str:
    """Milliseconds, or "-"."""
    return NOT_TOLD if seconds is None else f"{seconds * 1e3:.2f}"


def size(count: int) -> str:
    """Bytes with a decimal unit."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    raise AssertionError


def clip(text: str, columns: int) -> str:
    """At most so many columns, printable characters only."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= columns else shown[: columns - 3] + "..."
