"""One value of one metric of the catalog."""

from __future__ import annotations

from dataclasses import dataclass

from exporters.catalog import Metric


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric; `labels` in the order of the metric's own.

    A histogram has several: `suffix` "_bucket" with the upper `bound`, "_sum" and "_count".
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    suffix: str = ""
    bound: str = ""
