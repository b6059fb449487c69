"""The metrics of the exporter itself and of its rules: sources, ticks, findings."""

from __future__ import annotations

from typing import Final

from exporters.catalog_metric import Metric, counter, gauge

SOURCE_UP: Final = gauge(
    "source_up",
    "",
    "1 if the source was read at the last tick; 0 if not, and its values are absent.",
    "tick",
    ("source",),
    "exporter",
)
SOURCE_INFO: Final = gauge(
    "source_info",
    "",
    "1, with the reason why a source could not be read, or not wholly.",
    "tick",
    ("source", "reason"),
    "exporter",
)
TICKS: Final = counter("ticks", "", "Ticks finished.", "exporter", (), "exporter")
TICK_AGE: Final = gauge(
    "tick_age_seconds", "seconds", "Age of the values at this scrape.", "exporter", (), "exporter"
)
TICK_DURATION: Final = gauge(
    "tick_duration_seconds", "seconds", "Wall time of the last tick.", "exporter", (), "exporter"
)

CAPTURES: Final = counter(
    "captures", "", "Bundles saved on a critical finding.", "exporter", (), "exporter"
)
CAPTURE_FAULTS: Final = counter(
    "capture_faults",
    "",
    "Bundles and recorded pictures that could not be written; the log says why.",
    "exporter",
    (),
    "exporter",
)
_FINDING: Final = ("finding", "severity", "engine", "rank", "shard")
FINDING: Final = gauge("finding", "", "1 while the finding stands.", "rules", _FINDING, "rule")
FINDING_SINCE: Final = gauge(
    "finding_since_seconds", "seconds", "Age of the fault.", "rules", _FINDING, "rule"
)
FINDING_EVALUABLE: Final = gauge(
    "finding_evaluable",
    "",
    "1 if the rule could decide at the last tick, 0 if it abstained.",
    "rules",
    ("finding",),
    "rule",
)

EXPORTER_METRICS: Final[tuple[Metric, ...]] = (
    SOURCE_UP,
    SOURCE_INFO,
    TICKS,
    TICK_AGE,
    TICK_DURATION,
    CAPTURES,
    CAPTURE_FAULTS,
    FINDING,
    FINDING_SINCE,
    FINDING_EVALUABLE,
)
