"""The metrics that `stallscope trace --prom` writes to a file; the exporter serves the others."""

from __future__ import annotations

from typing import Final

from exporters.catalog_metric import Metric, gauge


def _of_profile(
    name: str, unit: str, help_text: str, labels: tuple[str, ...] = ("rank",)
) -> Metric:
    """A recorded window's figure: a gauge, since no process counts it on."""
    return gauge(f"profile_{name}", unit, help_text, "profiler", labels, "profile")


PROFILE_WALL: Final = _of_profile("wall_seconds", "seconds", "Length of the recorded window.", ())
PROFILE_WAIT: Final = _of_profile(
    "collective_wait_seconds", "seconds", "Wait in collectives for ranks that came later."
)
PROFILE_CHARGED: Final = _of_profile(
    "collective_charged_seconds", "seconds", "The other ranks' wait for this one, in rank-seconds."
)
PROFILE_BUSY: Final = _of_profile(
    "gpu_busy_seconds", "seconds", "Time with any work on the rank's GPU, collectives included."
)
PROFILE_WORK: Final = _of_profile(
    "gpu_work_seconds", "seconds", "Time with work on the rank's GPU other than collectives."
)
PROFILE_COPIED: Final = _of_profile(
    "copied_bytes", "bytes", "Bytes copied between GPU and host memory.", ("rank", "direction")
)
PROFILE_FINDING: Final = _of_profile(
    "finding", "", "1 for each finding of the window.", ("finding", "severity", "rank")
)
PROFILE_UNSEEN: Final = _of_profile("unseen", "", "How many things could not be told.", ())
PROFILE_METRICS: Final = (
    PROFILE_WALL,
    PROFILE_WAIT,
    PROFILE_CHARGED,
    PROFILE_BUSY,
    PROFILE_WORK,
    PROFILE_COPIED,
    PROFILE_FINDING,
    PROFILE_UNSEEN,
)
