"""`stallscope diagnose --from` a bundle, a recording, or the URL of an exporter or a Prometheus."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runbooks.cli.parser import UsageError
from runbooks.sources import Source

if TYPE_CHECKING:
    from exporters.snapshot import Evaluation

HTTP_NOT_FOUND: Final = 404
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def diagnose_recorded(source: Source, as_json: bool, at: float | None = None) -> int:
    """Judge the newest picture of it. Raises UsageError."""
    from detectors import ALL_RULES
    from exporters.readers.bundle import BundleError, Recorded, read
    from exporters.readers.web import WebError
    from runbooks.cli.findings_text import report_text
    from runbooks.cli.terminal import emit, style
    from runbooks.report import Asked, make_report

    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    try:
        if source.path is not None:
            evaluation = Recorded(read(source.path), ALL_RULES).look()
        else:
            evaluation = _fetch(source.text, at)
    except (BundleError, WebError) as error:
        raise UsageError(f"--from: {error}") from error
    urls = tuple(shard.url for shard in evaluation.snapshot.shards)
    report = make_report(evaluation, Asked(Path(source.text), urls))
    emit(json.dumps(report.as_json()) if as_json else report_text(report, style()))
    return report.exit_code


def _fetch(url: str, at: float | None) -> Evaluation:
    """From an exporter, or where that is none from a Prometheus. Raises WebError."""
    from exporters.readers import exporter, prometheus
    from exporters.readers.web import WebError

    if at is None:
        try:
            return exporter.fetch(url)
        except WebError as error:
            if error.code != HTTP_NOT_FOUND or not prometheus.is_prometheus(url):
                raise
    return prometheus.fetch(url, at)


def time_of(text: str, now: float) -> float:
    """Unix seconds of `--at`: seconds, ISO 8601 (UTC unless it says otherwise), or 10m, 2h, 1d ago.

    Raises UsageError.
    """
    match = re.fullmatch(r"-?(\d+(?:\.\d+)?)([smhd])", text)
    if match:
        at = now - float(match[1]) * _UNITS[match[2]]
    else:
        try:
            at = float(text)
        except ValueError:
            try:
                given = datetime.fromisoformat(text)
            except ValueError:
                raise UsageError(
                    f"--at {text!r}: write it like 2026-01-31T03:15, 10m (ago) or 1769829300"
                ) from None
            at = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
    if not 0 < at <= now + 1:
        raise UsageError(f"--at {text}: is not a time that has been")
    return at
