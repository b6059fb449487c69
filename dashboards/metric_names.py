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

_COMES_AND_GOES: Final = frozenset(
    (
        catalog.FINDING.name,
        catalog.FINDING_SINCE.name,
        catalog.COLLECTIVE_OPEN.name,
        catalog.PENDING_AGE.name,
        catalog.SOURCE_INFO.name,
        "ALERTS",
    )
)
_STRING: Final = re.compile(r'"[^"]*"')
_WORD: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@cache
def emitted() -> frozenset[str]:
    """Every name that something emits."""
    ours = {name for metric in catalog.METRICS for name in catalog.series_names(metric)}
    recorded = {rule.record for rule in recordings(Scale())}
    return frozenset(ours | recorded | foreign.VLLM_METRICS | foreign.PROMETHEUS_METRICS)


def read_by() -> dict[str, list[str]]:
    """Metric -> the boards and alerts that read it. What is absent while all is well is left out:
    a finding, an open collective, an operation that pends."""
    from dashboards.boards import BOARDS
    from dashboards.rule_files import groups
    from dashboards.rule_model import Alert

    queries = [(board.uid, t.expr) for board in BOARDS for p in board.panels() for t in p.targets]
    rules = [rule for group in groups(Scale()) for rule in group.rules]
    queries += [(rule.name, rule.expr) for rule in rules if isinstance(rule, Alert)]
    found: dict[str, list[str]] = {}
    for reader, query in queries:
        for name in named_in([query]):
            if name not in _COMES_AND_GOES and reader not in found.setdefault(name, []):
                found[name].append(reader)
    return {name: readers for name, readers in found.items() if readers}


def named_in(queries: Iterable[str]) -> list[str]:
    """The emitted metrics that these queries name, each once, in order of appearance."""
    words = (word for query in queries for word in _WORD.findall(_STRING.sub('""', query)))
    return list(dict.fromkeys(word for word in words if word in emitted()))
