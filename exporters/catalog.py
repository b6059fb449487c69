"""The one list of metrics: whoever emits, documents, graphs or alerts takes the name from here.

Prometheus' rules hold: prefix `stallscope_`, base units, `_total` on counters only, no colons, both
parts of a ratio as counters, no label per request. Standard library only.

This is its face: each topic has its own list in `exporters/catalog_*.py`.
"""

from __future__ import annotations

from typing import Final

from exporters.catalog_exporter import *
from exporters.catalog_metric import *
from exporters.catalog_model import *
from exporters.catalog_pages import *
from exporters.catalog_profiles import *
from exporters.catalog_requests import *
from exporters.catalog_shards import *

METRICS: Final[tuple[Metric, ...]] = (
    *PAGE_METRICS,
    *REQUEST_METRICS,
    *MODEL_METRICS,
    *SHARD_METRICS,
    *EXPORTER_METRICS,
)
