"""Evaluations as JSON and back: one form for /snapshot, recordings and bundles.

Written from the dataclasses' own fields, so nothing is named twice. A Snapshot holds no prompt and
no credentials (readers leave both out), and so neither does this.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from exporters.snapshot import Evaluation

SCHEMA: Final = 1


class SnapshotError(ValueError):
    """JSON that is no Evaluation of ours; the message is one line that says where."""


def to_json(evaluation: Evaluation, with_earlier: bool = False) -> dict[str, Any]:
    """An object for json.dumps: {"schema": 1, "evaluation": ...}.

    `with_earlier`: also the pictures before, which multiply its size.
    """
    if not with_earlier:
        picture = dataclasses.replace(evaluation.snapshot, earlier=())
        evaluation = dataclasses.replace(evaluation, snapshot=picture)
    return {"schema": SCHEMA, "evaluation": _plain(evaluation)}


def from_json(data: object) -> Evaluation:
    """The Evaluation that `to_json` wrote; fields of a later writer are left out.

    Raises SnapshotError.
    """
    if not isinstance(data, Mapping) or "evaluation" not in data:
        raise SnapshotError("is no snapshot: it has no evaluation")
    if data.get("schema") != SCHEMA:
        raise SnapshotError(f"has schema {str(data.get('schema'))[:20]}; this reads {SCHEMA}")
    evaluation: Evaluation = _typed(Evaluation, data["evaluation"], "evaluation")
    return evaluation


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _typed(kind: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type says; where it cannot be, SnapshotError."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise SnapshotError(f"{where} is no object")
        hints = _fields(typing.cast(type, kind))
        given = {
            name: _typed(hints[name], item, f"{where}.{name}")
            for name, item in value.items()
            if name in hints
        }
        try:
            return typing.cast(Any, kind)(**given)
        except TypeError as error:
            raise SnapshotError(f"{where} is not whole: {error}") from error
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        [inner] = [a for a in arguments if a is not type(None)]
        return _typed(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise SnapshotError(f"{where} is no list")
        return tuple(_typed(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise SnapshotError(f"{where} is no object")
        return {str(k): _typed(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if origin is typing.Literal:
        if value not in arguments:
            raise SnapshotError(f"{where} is {value!r:.40}, none of {', '.join(arguments)}")
        return value
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is object or kind is Any:
        return value
    if kind is float:
        if value is None:
            return math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif isinstance(kind, type) and isinstance(value, kind):
        return value
    name = getattr(kind, "__name__", str(kind))
    raise SnapshotError(f"{where} is {value!r:.40}, no {name}")
