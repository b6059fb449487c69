"""History: the findings as they were published, from the series that a Prometheus has kept.

Live, history and alerts are one evaluation: nothing is judged again here. Evidence is not in the
series, and neither are ranks and shards that nothing was found of; that is said to be unseen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from exporters import catalog, reasons
from exporters.readers.shard_url import without_credentials
from exporters.readers.web import WebError, get_json
from exporters.snapshot import Evaluation, Finding, Severity, Snapshot, Unseen

# Where a series was taken from, in the order in which it is told.
PLACE_LABELS: Final = ("cluster", "namespace", "pod", "instance")
_SEVERITIES: Final[dict[str, Severity]] = {
    "critical": "critical",
    "warning": "warning",
    "info": "info",
}
_ORDER: Final = {"critical": 0, "warning": 1, "info": 2}


def fetch(url: str, at_unix_seconds: float | None = None) -> Evaluation:
    """The findings of every pod at that time (None: now), those of the worst pods first.

    Raises WebError.
    """
    at = time.time() if at_unix_seconds is None else at_unix_seconds
    findings = _query(url, catalog.FINDING.name, at)
    since = {_key(labels): value for labels, value in _query(url, catalog.FINDING_SINCE.name, at)}
    ticks = _query(url, catalog.TICKS.name, at)
    down = [labels for labels, value in _query(url, catalog.SOURCE_UP.name, at) if value == 0]
    unseen = list(_unseen(url, at, ticks, down))
    made = [
        Finding(
            id=labels.get("finding", ""),
            severity=_SEVERITIES.get(labels.get("severity", ""), "info"),
            summary=f"published by {_place(labels)}",
            rank=int(labels["rank"]) if labels.get("rank", "").isdigit() else None,
            shard=labels.get("shard") or None,
            engine_id=labels.get("engine", ""),
            since_seconds=since.get(_key(labels), 0.0),
        )
        for labels, value in findings
        if value == 1
    ]
    return Evaluation(
        Snapshot(now_seconds=at, unix_seconds=at, unseen=tuple(unseen)),
        tuple(_worst_pods_first(made)),
        (),
    )


def _worst_pods_first(findings: Iterable[Finding]) -> list[Finding]:
    """By engine: how bad its worst is, how many it has; within one, worst and oldest first."""
    listed = list(findings)
    of_engine: dict[str, list[Finding]] = {}
    for finding in listed:
        of_engine.setdefault(finding.engine_id, []).append(finding)
    rank = {
        engine: (min(_ORDER[f.severity] for f in found), -len(found), engine)
        for engine, found in of_engine.items()
    }
    return sorted(
        listed, key=lambda f: (rank[f.engine_id], _ORDER[f.severity], -f.since_seconds, f.id)
    )


def _unseen(
    url: str, at: float, ticks: list[tuple[dict[str, str], float]], down: list[dict[str, str]]
) -> Iterable[Unseen]:
    shown = without_credentials(url)
    if not ticks:
        kept = _retention(url)
        yield Unseen(
            shown,
            reasons.NO_HISTORY,
            f"{shown} has no series of stallscope at {_clock(at)}"
            + (f"; it keeps them for {kept}" if kept else ""),
            "give a time within that, or look whether the exporter was scraped then",
        )
        return
    yield Unseen(
        shown,
        reasons.NOT_RECORDED,
        f"{len(ticks)} exporters were scraped; what was found is here as it was published, its "
        "evidence is not",
        "a bundle or a recording of that time has it",
    )
    for labels in down:
        yield Unseen(
            labels.get("source", ""),
            reasons.UNREACHABLE,
            f"{_place(labels)} could not read {labels.get('source', 'a source')}",
        )


def _retention(url: str) -> str:
    try:
        found = get_json(url, "/api/v1/status/runtimeinfo")
        return str(found["data"]["storageRetention"])[:40]
    except (WebError, KeyError, TypeError):
        return ""


def _query(url: str, name: str, at: float) -> list[tuple[dict[str, str], float]]:
    """One instant query for all series of a name. Raises WebError."""
    answer = get_json(url, "/api/v1/query", {"query": name, "time": f"{at:.3f}"})
    shown = without_credentials(url)
    try:
        if answer["status"] != "success" or answer["data"]["resultType"] != "vector":
            raise WebError(f"{shown}: {str(answer.get('error', 'no vector'))[:200]}")
        return [
            ({str(k): str(v) for k, v in row["metric"].items()}, float(row["value"][1]))
            for row in answer["data"]["result"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise WebError(f"{shown}: answers a query as no Prometheus does") from error


def _key(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in labels.items() if k != "__name__"))


def _place(labels: dict[str, str]) -> str:
    found = [labels[name] for name in PLACE_LABELS if labels.get(name)]
    return " ".join(found) or "an exporter"


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_seconds))


def is_prometheus(url: str) -> bool:
    """Whether it answers as one. Raises WebError where it cannot be reached at all."""
    try:
        answer: Any = get_json(url, "/api/v1/query", {"query": "1"})
    except WebError as error:
        if error.code == 404:
            return False
        raise
    return isinstance(answer, dict) and answer.get("status") == "success"
