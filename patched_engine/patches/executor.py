"""A slow or failed job never ends one of the executor's four workers.

A job that outlives its waiter finds its future cancelled; setting the result then raises, and so
does setting that exception, out of the worker. Four such jobs, and every GET, PUT and EXISTS of the
connector waits for ever.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from patched_engine.patches.patch import NotNeeded, Patch, code_names, require


class JobCancelled(RuntimeError):
    """A job was cancelled, but not its worker: the waiter is told, the worker stays."""


def check(module: Any) -> None:
    """The worker must set results without looking whether anyone still waits."""
    worker = require(module.AsyncPQExecutor, "_worker", {"set_result", "set_exception"})
    require(module.AsyncPQExecutor, "submit_job", {"create_future"}, ("fn",))
    if {"cancelled", "done_future"} & code_names(worker):
        raise NotNeeded("the worker looks whether its future is cancelled")


def apply(module: Any) -> None:
    """Shield each job from its waiter, and the worker from its job's cancellation."""
    stock = module.AsyncPQExecutor.submit_job

    @functools.wraps(stock)
    async def shielded(
        self: Any, fn: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        job = asyncio.ensure_future(stock(self, _never_cancelled(fn), *args, **kwargs))
        job.add_done_callback(_take_notice)
        return await asyncio.shield(job)

    module.AsyncPQExecutor.submit_job = shielded


def _never_cancelled(fn: Callable[..., Any]) -> Callable[..., Any]:
    if not asyncio.iscoroutinefunction(
        fn
    ):  # the thread pool's jobs: cancellation cannot reach them
        return fn

    @functools.wraps(fn)
    async def job(*args: Any, **kwargs: Any) -> Any:
        try:
            return await fn(*args, **kwargs)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the worker itself is being stopped
            raise JobCancelled("the job was cancelled") from error

    return job


def _take_notice(job: asyncio.Future[Any]) -> None:
    """Whoever waited is gone: what became of the job is nobody's, and that is no error."""
    if not job.cancelled():
        job.exception()


PATCH: Final = Patch(
    name="executor",
    upstream="LMCache, no number: a job that outlives its waiter ends a worker",
    summary="a slow, failed or cancelled job never ends one of the executor's workers",
    module="lmcache.v1.storage_backend.job_executor.pq_executor",
    touches=("AsyncPQExecutor.submit_job",),
    check=check,
    apply=apply,
)
