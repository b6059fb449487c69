"""A profile's figures as text for a node exporter's textfile collector, named by the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exporters import catalog
from exporters.profile import RankProfile
from runbooks.trace_report import TraceReport


def exposition(report: TraceReport) -> str:
    """Text in the Prometheus format, all gauges: a recorded window is no running process. A figure
    that cannot be told has no sample."""
    profile = report.profile
    ranks = profile.ranks
    lines = [
        *_family(catalog.PROFILE_WALL, [({}, profile.wall_seconds)] if ranks else []),
        *_family(catalog.PROFILE_WAIT, _per_rank(ranks, [r.wait_seconds for r in ranks])),
        *_family(catalog.PROFILE_CHARGED, _per_rank(ranks, [r.charged_seconds for r in ranks])),
        *_family(catalog.PROFILE_BUSY, _per_rank(ranks, [r.busy_seconds for r in ranks])),
        *_family(catalog.PROFILE_WORK, _per_rank(ranks, [r.work_seconds for r in ranks])),
        *_family(catalog.PROFILE_COPIED, _copies(ranks)),
        *_family(catalog.PROFILE_FINDING, _findings(report)),
        *_family(catalog.PROFILE_UNSEEN, [({}, float(len(report.unseen)))]),
    ]
    return "\n".join(lines) + "\n"


_Sample = tuple[dict[str, str], float]


def _per_rank(ranks: Iterable[RankProfile], values: Iterable[float | None]) -> list[_Sample]:
    return [
        ({"rank": str(rank.rank)}, value)
        for rank, value in zip(ranks, values, strict=True)
        if value is not None
    ]


def _copies(ranks: Iterable[RankProfile]) -> list[_Sample]:
    out: list[_Sample] = []
    for rank in ranks:
        if rank.busy_seconds is not None:
            labels = {"rank": str(rank.rank)}
            out.append(({**labels, "direction": "d2h"}, float(rank.d2h_bytes)))
            out.append(({**labels, "direction": "h2d"}, float(rank.h2d_bytes)))
    return out


def _findings(report: TraceReport) -> list[_Sample]:
    found: list[_Sample] = []
    for finding in report.findings:
        rank = "" if finding.rank is None else str(finding.rank)
        labels = {"finding": finding.id, "severity": finding.severity, "rank": rank}
        if (labels, 1.0) not in found:  # two kernels can both be wasteful
            found.append((labels, 1.0))
    return found


def _family(metric: catalog.Metric, samples: Iterable[_Sample]) -> Iterator[str]:
    listed = list(samples)
    if not listed:
        return
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.type}"
    for labels, value in listed:
        text = ",".join(f'{key}="{_escaped(labels[key])}"' for key in metric.labels)
        yield f"{metric.name}{{{text}}} {value:.9g}" if text else f"{metric.name} {value:.9g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
