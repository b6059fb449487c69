"""Counts the engine's steps: the function that runs one lockstep forward pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.wrap import attach_by_name

STEP_VARIABLE = "STALLSCOPE_STEP_FUNCTION"
# vLLM's workers; another engine names its own in the variable, comma separated.
DEFAULT_STEP_FUNCTIONS = ("vllm.v1.worker.gpu_worker:Worker.execute_model",)

_STARTED = layout.MARK_INDEX["step_started"]
_FINISHED = layout.MARK_INDEX["step_finished"]
_STEPS = layout.COUNTER_INDEX["steps"]
_STEP_NS = layout.COUNTER_INDEX["step_nanoseconds"]


class StepHook:
    """Marks a step's start and end and adds its time."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        page = recorder.current()
        return page.mark(_STARTED) if page is not None else 0

    def after(
        self, token: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        page = recorder.current()
        if page is not None and token:
            page.add(_STEP_NS, page.mark(_FINISHED) - token)
            page.add(_STEPS)


def install() -> None:
    """Hook the step function, vLLM's or the one that the environment names."""
    named = os.environ.get(STEP_VARIABLE, "")
    targets = [t.strip() for t in named.split(",") if t.strip()] or list(DEFAULT_STEP_FUNCTIONS)
    hook = StepHook()
    for target in targets:
        attach_by_name(target, hook)
