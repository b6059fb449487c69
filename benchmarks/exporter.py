"""The exporter's saturation beside the kernel's account, and its cost beside redis_exporter's.

First, real servers at five loads of 12.4 MB GETs: the interval that is published, the share of wall
time in which the main thread ran or was ready to (schedstat), and the share in commandstats, from
which the figure is often taken. Then one exporter for 8 shards and 8 pages beside eight of
prometheus-redis-exporter on the same shards, scraped in turn in one run.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks import exporter_beside, exporter_saturation
from benchmarks.exporter_saturation import Figure
from benchmarks.report import Bar, Report, take_no_arguments

AGREEMENT = 0.10  # where both bounds meet
CONTAINMENT = 0.02  # INFO and schedstat are not read at one instant
IDLE = 0.05
WALL_RATIO, MEGABYTES = 1.0, 80.0


def saturation(report: Report) -> None:
    """The table of the five loads, and its bars."""
    for kind, io_threads in exporter_saturation.SERVERS:
        print(f"{kind}, io-threads {io_threads}", file=sys.stderr)
        figures = exporter_saturation.measure(kind, io_threads)
        name = f"{kind}, io-threads {io_threads}"
        if isinstance(figures, str):
            report.notes.append(f"{name}: not measured, {figures}")
            continue
        report.rows += [_row(figure) for figure in figures]
        report.bars += _bars(name, io_threads, {figure.level: figure for figure in figures})
    report.notes.append("Valkey 8.x: no program of it to be had, so not measured")


def _row(figure: Figure) -> tuple[str, ...]:
    said = figure.said
    told = "-" if said.command_share is None else f"{said.command_share:.2f}"
    return (
        f"{figure.server}, io {figure.io_threads}, {figure.level}",
        f"{figure.gets_per_second:.0f}",
        f"{said.lower:.2f}",
        f"{said.upper:.2f}",
        f"{figure.truth:.2f}",
        f"{figure.ran:.2f}",
        told,
        said.basis,
    )


def _bars(name: str, io_threads: int, at: dict[str, Figure]) -> list[Bar]:
    meets = all(figure.said.lower == figure.said.upper for figure in at.values())
    outside = max(figure.outside for figure in at.values())
    bars = [
        Bar(f"{name}, off the kernel's account", outside, AGREEMENT)
        if io_threads == 1 and meets
        else Bar(f"{name}, kernel's account outside the interval", outside, CONTAINMENT)
    ]
    bars.append(Bar(f"{name}, idle, lower", at["idle"].said.lower, IDLE))
    # Where the bounds lie apart it is the middle that has to tell one load from the next.
    idle, light, heavy = (_middle(at[level]) for level in ("idle", "light", "heavy"))
    step = min(light - idle, heavy - light)
    bars.append(Bar(f"{name}, least step idle < light < heavy", step, 0.001, at_most=False))
    return bars


def _middle(figure: Figure) -> float:
    return (figure.said.lower + figure.said.upper) / 2


def beside(report: Report) -> None:
    """Our cost beside theirs."""
    program = exporter_beside.their_program()
    if program is None:
        report.notes.append(f"no {exporter_beside.PACKAGE} here: its package cannot be downloaded")
        return
    found = exporter_beside.measure(program)
    per_round_ms = 1e3 / len(found.ours_ms)
    report.notes += [
        f"8 of {exporter_beside.PACKAGE}, all at once: "
        f"p50 {statistics.median(found.theirs_ms):.1f} ms, {found.theirs_megabytes:.0f} MB, "
        f"{found.theirs_cpu_seconds * per_round_ms:.1f} ms of CPU a scrape, "
        f"{found.theirs_series} series",
        f"one of ours, 8 shards and 8 pages: p50 {statistics.median(found.ours_ms):.1f} ms, "
        f"{found.ours_megabytes:.0f} MB, {found.ours_series} series, "
        f"{found.ours_cpu_seconds / found.wall_seconds * 1e3:.0f} ms of CPU a second with its "
        f"ticks; CPU of the run, ours / theirs: "
        f"{found.ours_cpu_seconds / found.theirs_cpu_seconds:.2f}",
    ]
    report.bars += [
        Bar("wall of a scrape, ours / theirs", found.ratio, WALL_RATIO, "x", noise=found.noise),
        Bar("memory, ours", found.ours_megabytes, MEGABYTES, "MB"),
    ]


def main() -> int:
    take_no_arguments(__doc__)
    report = Report(
        "exporter",
        ("main thread", "GET/s", "lower", "upper", "run+wait", "run", "commandstats", "basis"),
    )
    saturation(report)
    beside(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
