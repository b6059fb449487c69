"""`stallscope diagnose --from` a bundle, a recording, or the URL of an exporter or a Prometheus."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from runbooks.cli.parser import UsageError
from runbooks.sources import Source


def diagnose_recorded(source: Source, as_json: bool, at: float | None = None) -> int:
    """Judge the newest picture of it. Raises UsageError."""
    from detectors import ALL_RULES
    from exporters.readers.bundle import BundleError, Recorded, read
    from runbooks.cli.findings_text import report_text
    from runbooks.cli.terminal import emit, style
    from runbooks.report import Asked, make_report

    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    try:
        if source.path is not None:
            evaluation = Recorded(read(source.path), ALL_RULES).look()
        else:
            from exporters.readers.exporter import fetch

            evaluation = fetch(source.text)
    except BundleError as error:
        raise UsageError(f"--from: {error}") from error
    urls = tuple(shard.url for shard in evaluation.snapshot.shards)
    report = make_report(evaluation, Asked(Path(source.text), urls))
    emit(json.dumps(report.as_json()) if as_json else report_text(report, style()))
    return report.exit_code
