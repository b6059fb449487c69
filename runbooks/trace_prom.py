"""A profile's figures for a node exporter's textfile collector, under the catalog's prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exporters.profile import RankProfile
from runbooks.trace_report import TraceReport

PREFIX = "stallscope_profile_"


def exposition(report: TraceReport) -> str:
    """Text in the Prometheus format, all gauges: a recorded window is no running process. A figure
    that cannot be told has no sample."""
    profile = report.profile
    ranks = profile.ranks
    lines = [
        *_family("wall_seconds", "Length of the recorded window", [({}, profile.wall_seconds)]),
        *_family(
            "collective_wait_seconds",
            "Wait for later ranks in collectives, by the design's definition",
            _per_rank(ranks, [(r.wait_seconds) for r in ranks]),
        ),
        *_family(
            "collective_charged_seconds",
            "The other ranks' wait for this one, in rank-seconds",
            _per_rank(ranks, [r.charged_seconds for r in ranks]),
        ),
        *_family(
            "gpu_busy_seconds",
            "Time with any work on the rank's GPU, collectives included",
            _per_rank(ranks, [r.busy_seconds for r in ranks]),
        ),
        *_family(
            "gpu_work_seconds",
            "Time with work on the rank's GPU other than collectives",
            _per_rank(ranks, [r.work_seconds for r in ranks]),
        ),
        *_family("copied_bytes", "Bytes copied between GPU and host memory", _copies(ranks)),
        *_family(
            "finding",
            "1 for each finding of the recorded window",
            [
                (
                    {
                        "finding": f.id,
                        "severity": f.severity,
                        "rank": "" if f.rank is None else str(f.rank),
                    },
                    1.0,
                )
                for f in report.findings
            ],
        ),
        *_family("unseen", "How many things could not be told", [({}, float(len(report.unseen)))]),
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


def _family(name: str, about: str, samples: Iterable[_Sample]) -> Iterator[str]:
    listed = list(samples)
    if not listed:
        return
    yield f"# HELP {PREFIX}{name} {about}"
    yield f"# TYPE {PREFIX}{name} gauge"
    seen = set()
    for labels, value in listed:
        text = ",".join(f'{key}="{_escaped(v)}"' for key, v in labels.items())
        if text not in seen:  # two kernels can both be wasteful
            seen.add(text)
            yield f"{PREFIX}{name}{{{text}}} {value:.9g}" if text else f"{PREFIX}{name} {value:.9g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
