"""Picks the engine for an endpoint, and can say which it would be and why (for `doctor`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal, cast

from patched_engine.resp.build import BuildError
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.engine import Engine
from patched_engine.resp.pure import PureEngine
from patched_engine.resp.url import Endpoint

ENGINE_VARIABLE: Final = "STALLSCOPE_RESP_ENGINE"
EngineChoice = Literal["auto", "compiled", "pure"]
_CHOICES: Final = ("auto", "compiled", "pure")


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """`name` is "compiled" or "pure", `reason` why in one line, `library` the core's file."""

    name: str
    reason: str
    library: str = ""


def status(choice: str | None = None, *, tls: bool = False) -> EngineStatus:
    """The engine that a client made now would have; never raises for lack of a compiler.

    Raises ValueError for a choice that does not exist, BuildError where `compiled` was demanded and
    cannot be had.
    """
    wanted = _wanted(choice)
    if wanted == "pure":
        return EngineStatus("pure", "asked for")
    if tls:
        if wanted == "compiled":
            raise BuildError("the compiled engine has no TLS: give resp:// or the engine auto")
        return EngineStatus("pure", "TLS is the pure engine's")
    from patched_engine.resp import compiled

    try:
        _, path = compiled.load()
    except BuildError as error:
        if wanted == "compiled":
            raise
        return EngineStatus("pure", f"no compiled core: {error}")
    return EngineStatus("compiled", "the core is loaded", str(path))


def make_engine(
    endpoint: Endpoint, connections: int, deadlines: Deadlines, choice: str | None = None
) -> tuple[Engine, EngineStatus]:
    """A running engine. Raises as `status` does."""
    chosen = status(choice, tls=endpoint.tls is not None)
    if chosen.name == "pure":
        return PureEngine(endpoint, connections, deadlines), chosen
    from patched_engine.resp.compiled import CompiledEngine

    return CompiledEngine(endpoint, connections, deadlines), chosen


def _wanted(choice: str | None) -> EngineChoice:
    wanted = choice or os.environ.get(ENGINE_VARIABLE, "") or "auto"
    if wanted not in _CHOICES:
        raise ValueError(f"engine {wanted!r}: give one of {', '.join(_CHOICES)}")
    return cast(EngineChoice, wanted)
