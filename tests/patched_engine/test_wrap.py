"""A hook observes: whatever it does wrong, the function's result and errors are untouched."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from patched_engine import recorder
from patched_engine.hooks.wrap import (
    FAILED,
    attach,
    attach_by_name,
    observed_coroutine,
    when_imported,
)


@pytest.fixture(autouse=True)
def fresh_faults() -> Iterator[None]:
    recorder.faults.clear()
    yield
    recorder.faults.clear()
    recorder.hook_status.clear()


class Recording:
    def __init__(self, fail_before: bool = False, fail_after: bool = False) -> None:
        self.fail_before, self.fail_after = fail_before, fail_after
        self.seen: list[tuple[Any, Any]] = []

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.fail_before:
            raise RuntimeError("bug in a hook")
        return "token"

    def after(self, token: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.seen.append((token, result))
        if self.fail_after:
            raise RuntimeError("bug in a hook")


class Engine:
    def step(self, n: int) -> int:
        if n < 0:
            raise ValueError("the engine's own error")
        return n * 2

    @classmethod
    def build(cls, n: int) -> tuple[type, int]:
        return cls, n

    @staticmethod
    def plain(n: int) -> int:
        return n

    async def wait(self, n: int) -> int:
        await asyncio.sleep(0)
        if n < 0:
            raise ValueError("the engine's own error")
        return n


def fresh_engine() -> type[Engine]:
    return types.new_class("Engine", (), {}, lambda body: body.update(vars(Engine)))  # type: ignore[return-value]


@pytest.mark.parametrize("hook", [Recording(), Recording(True), Recording(fail_after=True)])
def test_results_and_errors_pass_through(hook: Recording) -> None:
    engine = fresh_engine()
    for name in ("step", "build", "plain"):
        assert attach(engine, name, hook) == "attached"
    assert engine().step(4) == 8
    assert engine.build(3) == (engine, 3)
    assert engine.plain(5) == 5
    with pytest.raises(ValueError, match="the engine's own error"):
        engine().step(-1)
    broken = hook.fail_before or hook.fail_after
    assert sum(recorder.faults.values()) == (4 if broken else 0)
    if not hook.fail_before:
        assert hook.seen[-1] == ("token", FAILED)


@pytest.mark.parametrize("hook", [Recording(), Recording(True), Recording(fail_after=True)])
def test_coroutines_are_spanned_to_their_end(hook: Recording) -> None:
    engine = fresh_engine()
    attach(engine, "wait", hook, observed_coroutine)
    assert asyncio.run(engine().wait(6)) == 6
    with pytest.raises(ValueError, match="the engine's own error"):
        asyncio.run(engine().wait(-1))
    if not hook.fail_before:
        assert hook.seen == [("token", 6), ("token", FAILED)]


def test_a_hook_is_put_on_once_and_a_missing_target_is_said() -> None:
    engine = fresh_engine()
    assert attach(engine, "step", Recording()) == "attached"
    assert attach(engine, "step", Recording()) == "present"
    assert attach(engine, "renamed_upstream", Recording()) == "absent"
    assert recorder.hook_status == {
        "Engine.step": "attached",
        "Engine.renamed_upstream": "absent",
    }


def test_modules_are_hooked_before_and_after_their_import(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_engine.py").write_text("class Worker:\n    def run(self): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    hook = Recording()
    attach_by_name("late_engine:Worker.run", hook)
    import late_engine  # type: ignore[import-not-found]

    assert late_engine.Worker().run() == 1
    assert hook.seen == [("token", 1)]
    when_imported("late_engine", lambda module: module.no_such_name)
    assert recorder.faults == {"attach late_engine": 1}
    del sys.modules["late_engine"]
