"""What a patch is, and what became of each in this process.

A patch changes one thing upstream has wrong, in versions that were looked at, where the target has
the expected shape. Anywhere else it does nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from patched_engine.locks import ForkSafeLock

VERSIONS: Final = ("0.5.5", "0.5.6")
"""The LMCache releases whose code the patches were written against."""

APPLIED: Final = "applied"
NOT_NEEDED: Final = "not needed"
REFUSED: Final = "refused"
OFF: Final = "off"
WAITING: Final = "waiting"


class NotNeeded(Exception):
    """The target has the fix already, or the fault cannot occur with it."""


class Refused(Exception):
    """The target is not of the shape that the patch was written for."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One fix. `check` raises NotNeeded or Refused; `apply` changes what `touches` lists.

    `module` is the upstream module whose import it waits for, and what both are called with.
    """

    name: str
    upstream: str
    summary: str
    module: str
    touches: tuple[str, ...]
    check: Callable[[Any], None]
    apply: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class PatchState:
    """What became of one patch: `state` is one of the five constants, `why` one line or ""."""

    patch: Patch
    state: str
    why: str = ""

    def row(self) -> dict[str, object]:
        """As JSON values, for `status()` and `stallscope doctor`."""
        return {
            "name": self.patch.name,
            "upstream": self.patch.upstream,
            "state": self.state,
            "why": self.why,
            "summary": self.patch.summary,
            "touches": list(self.patch.touches),
        }


_states: dict[str, PatchState] = {}
_lock = ForkSafeLock()


def note(patch: Patch, state: str, why: str = "") -> None:
    """Record what became of a patch."""
    with _lock:
        _states[patch.name] = PatchState(patch, state, why)


def states() -> list[PatchState]:
    """Every patch of this process, in the order in which they were begun."""
    with _lock:
        return list(_states.values())


def code_names(function: Any) -> frozenset[str]:
    """Names that a function's code mentions, its inner functions included; empty if it has none."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    found: set[str] = set()
    todo = [code] if code is not None else []
    while todo:
        current = todo.pop()
        found.update(current.co_names, current.co_varnames, current.co_freevars)
        todo.extend(item for item in current.co_consts if hasattr(item, "co_names"))
    return frozenset(found)


def unwrapped(function: Any) -> Any:
    """The function beneath decorators that kept `__wrapped__`."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def require(owner: Any, attribute: str, names: set[str], parameters: tuple[str, ...] = ()) -> Any:
    """`owner.attribute`, unwrapped. Raises Refused where it, a name or a parameter is missing."""
    target = getattr(owner, attribute, None)
    where = f"{getattr(owner, '__name__', owner)}.{attribute}"
    if target is None:
        raise Refused(f"{where} is not there")
    function = unwrapped(target)
    if missing := sorted(names - code_names(function)):
        raise Refused(f"{where} does not mention {missing[0]}")
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    accepted = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    if missing := [name for name in parameters if name not in accepted]:
        raise Refused(f"{where} takes no {missing[0]}")
    return function
