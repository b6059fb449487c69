"""Print docs/metrics.md from the catalog, so that no list of metrics is kept by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from exporters.catalog import METRICS, PROFILE_METRICS, Emitter, Metric

COMMAND: Final = "python -m exporters.catalog_docs"

# Heading and introduction by what one set of series stands for, in the order of the page.
SECTIONS: Final[Mapping[Emitter, tuple[str, str]]] = {
    "process": (
        "Every process of an engine",
        "From the page of each worker and of the scheduler; `rank` is empty for the scheduler.",
    ),
    "worker": ("Workers", "From the workers' pages, joined over an engine's ranks."),
    "scheduler": ("The scheduler", "From the scheduler's page."),
    "engine": ("Engines", "One set for each engine: what its pages say together."),
    "shard": ("Shards", "One set for each `--valkey` URL; credentials are never in the label."),
    "rule": ("Findings", "What `stallscope diagnose` says, from the same evaluation."),
    "exporter": ("The exporter itself", "Whether it reads its sources, and how fresh they are."),
    "profile": (
        "Profiles",
        "Written to a file by `stallscope trace --prom`, not served by the exporter.",
    ),
}


def markdown(metrics: Iterable[Metric] = (*METRICS, *PROFILE_METRICS)) -> str:
    """The whole page, ended by a newline."""
    by_emitter: dict[Emitter, list[Metric]] = {}
    for metric in metrics:
        by_emitter.setdefault(metric.emitted_by, []).append(metric)
    return "\n".join(_page(by_emitter)) + "\n"


def _page(by_emitter: Mapping[Emitter, list[Metric]]) -> Iterator[str]:
    count = sum(len(listed) for listed in by_emitter.values())
    yield "# Metrics"
    yield ""
    yield f"<!-- Made by `{COMMAND}`: change exporters/catalog_*.py, not this file. -->"
    yield ""
    yield (
        f"All {count} metrics, from the catalog in `exporters/catalog_*.py`. A value that could "
        "not be read is absent, and `stallscope_source_info` says why. *Basis* is what a value "
        "rests on."
    )
    for emitter, (heading, introduction) in SECTIONS.items():
        if emitter in by_emitter:
            yield from ("", f"## {heading}", "", introduction, "")
            yield "| Metric | Type | Unit | Labels | What it says | Basis |"
            yield "|---|---|---|---|---|---|"
            for metric in by_emitter[emitter]:
                yield _row(metric)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.name}`", metric.type, metric.unit, labels, metric.help, metric.basis)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(markdown(), end="")
