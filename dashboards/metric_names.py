"""Which metrics a query reads, and who emits each: the catalog, vLLM, Prometheus or our rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from dashboards import foreign
from dashboards.durations import Scale
from dashboards.recording import recordings
from exporters import catalog

_STRING: Final = re.compile(r'"[^"]*"')
_WORD: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@cache
def emitted() -> frozenset[str]:
    """Every name that something emits."""
    ours = {name for metric in catalog.METRICS for name in catalog.series_names(metric)}
    recorded = {rule.record for rule in recordings(Scale())}
    return frozenset(ours | recorded | foreign.VLLM_METRICS | foreign.PROMETHEUS_METRICS)


def named_in(queries: Iterable[str]) -> list[str]:
    """The emitted metrics that these queries name, each once, in order of appearance."""
    words = (word for query in queries for word in _WORD.findall(_STRING.sub('""', query)))
    return list(dict.fromkeys(word for word in words if word in emitted()))
