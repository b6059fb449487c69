"""How a report reads at 3 a.m.: which rank, what, since when, on what evidence, what to do next."""

from __future__ import annotations

import time
from typing import Final

from exporters.snapshot import Finding, Unseen
from runbooks.cli.terminal import Style
from runbooks.report import Item, Report, Stall

_COLOURS: Final = {"critical": "red", "warning": "yellow"}
_INDENT: Final = "  "
_LABEL_COLUMNS: Final = 9


def report_text(report: Report, style: Style, *, brief: bool = False) -> str:
    """The whole report as text, worst first; `brief` leaves the evidence out."""
    blocks = ["\n".join(_finding(item, report, style, brief)) for item in report.items]
    rest = [] if report.items or not _saw_anything(report) else [_nothing(report, style)]
    rest += [
        _row("open", _stall_line(stall), style, "yellow", indent="") for stall in report.stalls
    ]
    rest += [_row("log", line, style, "yellow", indent="") for line in _log_lines(report)]
    rest += [_row("unseen", unseen_line(u), style, "yellow", indent="") for u in report.unseen]
    if report.items:
        rest.append(_row("seen", seen_line(report), style, indent=""))
    return "\n\n".join([*blocks, "\n".join(rest)])


def unseen_line(unseen: Unseen) -> str:
    """What could not be seen, why, and the mend."""
    return unseen.detail + (f"; {unseen.mend}" if unseen.mend else "")


def seen_line(report: Report) -> str:
    """What this answer rests on."""
    snapshot = report.snapshot
    ranks = sum(len(engine.workers()) for engine in snapshot.engines)
    parts = [_count(ranks, "rank")] if report.asked.pages_dir is not None else []
    if report.asked.valkey_urls:
        parts.append(_count(sum(shard.up for shard in snapshot.shards), "shard"))
    if report.asked.logs:
        parts.append(_count(len(report.asked.logs), "log"))
    if (
        report.rules and report.asked.pages_dir is not None
    ):  # those that could not decide are each named under unseen
        parts.append(_count(len(report.rules), "rule"))
    elif report.asked.pages_dir is None and report.asked.logs:
        pass  # the rules judge what the log says, which is told line by line
    elif report.asked.pages_dir is None:
        parts.append("ranks were not asked for (--from), so no rule could decide")
    else:
        parts.append("no rule could decide")
    return "; ".join(parts)


def _log_lines(report: Report) -> list[str]:
    """What logs say, by kind: how often, by whom, when last."""
    lines = []
    for count in report.snapshot.logs:
        times = "once" if count.count == 1 else f"{count.count} times"
        who = f" by {count.process}" if count.process else ""
        pid = f" (pid {count.pid})" if count.pid is not None else ""
        at = count.last_unix_seconds
        when = ""
        if at is not None:
            day = time.strftime("%Y-%m-%d", time.gmtime(at))
            when = f", {'' if count.count == 1 else 'last '}{day} {clock(at)}"
        lines.append(f"{count.kind} {times}{who}{pid}{when}, in {count.source}")
    return lines


def _stall_line(stall: Stall) -> str:
    ranks = ", ".join(map(str, stall.missing_ranks))
    noun = "rank" if len(stall.missing_ranks) == 1 else "ranks"
    return f"{stall.op} for {duration(stall.open_seconds)}: {noun} {ranks} did not enter it"


def duration(seconds: float) -> str:
    """41 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(unix_seconds: float) -> str:
    """The wall time of day as logs write it."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(unix_seconds))


def _finding(item: Item, report: Report, style: Style, brief: bool) -> list[str]:
    finding = item.finding
    began = clock(report.snapshot.unix_seconds - finding.since_seconds)
    place = [] if finding.rank is None else [f"rank {finding.rank}"]
    place += [] if finding.shard is None else [f"shard {finding.shard}"]
    if len(report.snapshot.engines) > 1 and finding.engine_id:
        place.append(f"engine {finding.engine_id}")
    head = style.paint(_COLOURS.get(finding.severity, "bold"), finding.severity.upper())
    lines = [
        f"{head}  {style.paint('bold', ', '.join([finding.id, *place]))}"
        f"  since {began} ({duration(finding.since_seconds)})"
    ]
    lines += style.wrap(finding.summary, _INDENT)
    if not brief:
        for evidence in finding.evidence:
            lines += style.wrap(evidence.text, _INDENT * 2, first=_INDENT + "- ")
        lines.append(_row("sure", f"{finding.confidence:.0%}", style))
    for symptom in item.symptoms:
        lines += _symptom(symptom.finding, style)
    if item.next_command:
        lines.append(_row("next", style.paint("bold", item.next_command), style))
    if item.runbook:
        lines.append(_row("runbook", f"stallscope runbook {item.runbook}", style))
    return lines


def _symptom(finding: Finding, style: Style) -> list[str]:
    """What follows from the finding above: what it is, and the first of its figures."""
    where = "" if finding.rank is None else f", rank {finding.rank}"
    told = f"{finding.id}{where}: {finding.summary}"
    label = style.paint("dim", "so also")
    return style.wrap(told, _INDENT + " " * _LABEL_COLUMNS, first=f"{_INDENT}{label}  ")


def _row(label: str, text: str, style: Style, paint: str = "dim", indent: str = _INDENT) -> str:
    """A label and one line, never wrapped: a command must survive being copied, a reason grep."""
    return f"{indent}{style.paint(paint, label)}{' ' * (_LABEL_COLUMNS - len(label))}{text}"


def _saw_anything(report: Report) -> bool:
    return bool(report.snapshot.engines or report.asked.logs) or any(
        shard.up for shard in report.snapshot.shards
    )


def _nothing(report: Report, style: Style) -> str:
    if report.stalls or report.snapshot.logs:
        head = style.paint("bold", "no rule found anything")
    elif report.unseen:
        head = style.paint("bold", "nothing found in what could be seen")
    else:
        head = style.paint("green", "nothing found")
    return f"{head}  {seen_line(report)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
