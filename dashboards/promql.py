"""Small pieces of PromQL, so that each query says its metric, its scope and its sum alike."""

from __future__ import annotations

from typing import Final

from exporters.catalog import Metric

# The variables of a board as matchers; the value of "All" is .*, which takes an absent label too.
FLEET: Final = 'cluster=~"$cluster", namespace=~"$namespace"'
ENGINE: Final = f'{FLEET}, engine=~"$engine"'
RANK: Final = f'{ENGINE}, rank=~"$rank"'
SHARD: Final = f'{FLEET}, shard=~"$shard"'
WORKER: Final = 'role=~".*worker.*"'  # one process may have several roles
INTERVAL: Final = "$__rate_interval"


def pick(metric: Metric | str, *matchers: str) -> str:
    """A selector: the metric and its matchers."""
    name = metric if isinstance(metric, str) else metric.name
    inside = ", ".join(m for m in matchers if m)
    return f"{name}{{{inside}}}" if inside else name


def rate(metric: Metric | str, *matchers: str, window: str = INTERVAL) -> str:
    """The rate of a counter over `window`. Raises ValueError for a gauge of the catalog."""
    if isinstance(metric, Metric) and metric.type != "counter":
        raise ValueError(f"{metric.name} is a {metric.type}, which has no rate")
    return f"rate({pick(metric, *matchers)}[{window}])"


def by(function: str, labels: str, query: str) -> str:
    """`function by (labels) (query)`."""
    return f"{function} by ({labels}) ({query})"


def total(labels: str, query: str) -> str:
    """The sum by labels."""
    return by("sum", labels, query)


def equals(label: str, value: str) -> str:
    """A matcher for one value of a label."""
    return f'{label}="{value}"'


def top(count: int, query: str) -> str:
    """The `count` largest at each moment."""
    return f"topk({count}, {query})"
