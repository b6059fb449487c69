"""Tells the request log what vLLM's scheduler does: admits, schedules, answers, finishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patched_engine.hooks.wrap import FAILED, attach, when_imported
from patched_engine.request_log import requests

SCHEDULER_MODULE = "vllm.v1.core.sched.scheduler"


class _After:
    """A hook that looks at a call once it is over."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None


class AddRequestHook(_After):
    """Scheduler.add_request(self, request)."""

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if result is not FAILED:
            request = args[1] if len(args) > 1 else kwargs["request"]
            requests.admitted(request.request_id, request.num_prompt_tokens, request.arrival_time)


class ScheduleHook(_After):
    """Scheduler.schedule(self) -> SchedulerOutput."""

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if result is FAILED:
            return
        scheduler = args[0]
        # Those that wait for their KV stand in a queue of their own, in versions that have one.
        waiting = len(scheduler.waiting) + len(getattr(scheduler, "skipped_waiting", ()))
        requests.scheduled(result.num_scheduled_tokens, waiting, len(scheduler.running))


class OutputHook(_After):
    """Scheduler.update_from_output(self, scheduler_output, model_runner_output) -> the outputs by
    client: the first of each request carries how its prompt was come by."""

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if result is FAILED or not result:
            return
        for of_client in result.values():
            for output in of_client.outputs:
                stats = getattr(output, "prefill_stats", None)
                if stats is not None:
                    requests.first_token(
                        output.request_id,
                        stats.num_local_cached_tokens,
                        stats.num_external_cached_tokens,
                    )


class FreeRequestHook:
    """Scheduler._free_request(self, request): once for each request, answered or aborted."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        request = args[1] if len(args) > 1 else kwargs["request"]
        return str(request.request_id)

    def after(
        self, token: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        requests.finished(token)


def _hook_scheduler(module: Any) -> None:
    attach(module.Scheduler, "add_request", AddRequestHook())
    attach(module.Scheduler, "schedule", ScheduleHook())
    attach(module.Scheduler, "update_from_output", OutputHook())
    attach(module.Scheduler, "_free_request", FreeRequestHook())


def install() -> None:
    """Hook vLLM's scheduler as it is imported."""
    when_imported(SCHEDULER_MODULE, _hook_scheduler)
