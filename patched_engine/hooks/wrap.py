"""The one way a hook is put around a function: it may observe, never alter, raise or block.

A hook is an object with `before(args, kwargs) -> token` and `after(token, args, kwargs, result)`.
An exception of the hook is counted and forgotten; an exception of the function passes through
untouched, after `after` was told with `result=FAILED`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import wrapt

from patched_engine import recorder

FAILED: Final = object()
_MARK = "__stallscope_hook__"
awaited: set[str] = set()
"""Modules that something of ours waits for, imported by now or not."""


class Hook(Protocol):
    """What stands before and after one function."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...

    def after(
        self, token: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None: ...


def observed(name: str, function: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    """`function` with `hook` around it."""
    before, after, fault = hook.before, hook.after, recorder.fault

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            token = before(args, kwargs)
        except Exception as error:
            fault(name, error)
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException:
            try:
                after(token, args, kwargs, FAILED)
            except Exception as error:
                fault(name, error)
            raise
        try:
            after(token, args, kwargs, result)
        except Exception as error:
            fault(name, error)
        return result

    setattr(call, _MARK, True)
    return call


def observed_coroutine(name: str, function: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    """The same for an `async def`: the hook spans the awaited call."""
    before, after, fault = hook.before, hook.after, recorder.fault

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            token = before(args, kwargs)
        except Exception as error:
            fault(name, error)
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException:
            try:
                after(token, args, kwargs, FAILED)
            except Exception as error:
                fault(name, error)
            raise
        try:
            after(token, args, kwargs, result)
        except Exception as error:
            fault(name, error)
        return result

    setattr(call, _MARK, True)
    return call


def unhooked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without a hook of ours around it, for a caller that has its own."""
    while getattr(function, _MARK, False) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def attach(
    owner: Any,
    attribute: str,
    hook: Hook,
    wrapper: Callable[[str, Callable[..., Any], Hook], Callable[..., Any]] = observed,
) -> str:
    """Put `hook` on `owner.attribute`; returns and records "attached", "absent" or "present".

    Static and class methods keep their kind. An attribute that is not there is said, not an error:
    versions differ.
    """
    name = f"{getattr(owner, '__name__', type(owner).__name__)}.{attribute}"
    raw = vars(owner).get(attribute)
    kind = type(raw) if isinstance(raw, (staticmethod, classmethod)) else None
    function = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
    if not callable(function):
        status = "absent"
    elif getattr(function, _MARK, False):
        status = "present"
    else:
        wrapped: Any = wrapper(name, function, hook)
        setattr(owner, attribute, kind(wrapped) if kind is not None else wrapped)
        status = "attached"
    if status != "present":
        recorder.hook_status[name] = status
    return status


def when_imported(module: str, action: Callable[[Any], object]) -> None:
    """Run `action(module)` once it is imported, at once if it is; its faults are counted."""

    def guarded(loaded: Any) -> None:
        try:
            action(loaded)
        except Exception as error:
            recorder.hook_status[module] = f"failed: {error!r}"[:120]
            recorder.fault(f"attach {module}", error)

    awaited.add(module)
    wrapt.register_post_import_hook(guarded, module)


def attach_by_name(target: str, hook: Hook) -> None:
    """Attach to "package.module:Class.function" as soon as that module is imported."""
    module, _, path = target.partition(":")

    def action(loaded: Any) -> None:
        owner = loaded
        *parents, attribute = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        attach(owner, attribute, hook)

    when_imported(module, action)


def is_available(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
