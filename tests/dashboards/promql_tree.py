"""A query as promql-parser reads it, walked: selectors, and the functions around each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as p

_VARIABLE = re.compile(r"\$\{?\w+\}?")


@dataclass(frozen=True)
class Selected:
    """One selector: its metric, the labels it matches, and the functions that it is inside of."""

    metric: str
    labels: tuple[str, ...]
    inside: tuple[str, ...]
    has_range: bool


def parsed(query: str):
    """The tree. Grafana's variables stand for a window or a regular expression."""
    return p.parse(_VARIABLE.sub(lambda m: "1m" if "interval" in m[0] else ".*", query))


def selected(query: str) -> list[Selected]:
    return list(_walk(parsed(query), (), False))


def _walk(node, inside: tuple[str, ...], has_range: bool) -> Iterator[Selected]:
    if isinstance(node, p.VectorSelector):
        labels = tuple(m.name for m in node.matchers.matchers)
        yield Selected(node.name, labels, inside, has_range)
    elif isinstance(node, p.MatrixSelector):
        yield from _walk(node.vector_selector, inside, True)
    elif isinstance(node, p.AggregateExpr):
        yield from _walk(node.expr, (*inside, str(node.op)), has_range)
    elif isinstance(node, p.Call):
        for argument in node.args:
            yield from _walk(argument, (*inside, node.func.name), has_range)
    elif isinstance(node, p.BinaryExpr):
        yield from _walk(node.lhs, inside, has_range)
        yield from _walk(node.rhs, inside, has_range)
    elif isinstance(node, p.ParenExpr | p.UnaryExpr | p.SubqueryExpr):
        yield from _walk(node.expr, inside, has_range)
    else:
        assert isinstance(node, p.NumberLiteral | p.StringLiteral), type(node)
