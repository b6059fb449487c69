"""The metrics of the scheduler's requests, and of what a lookup and the L1 of each rank hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporters.catalog_metric import Metric, counter, gauge, histogram

_SCHEDULER: Final = ("engine",)
_REQUEST_HOOK: Final = "request hook of the scheduler"

# Counters of the scheduler's page that are exposed as they stand.
REQUEST_COUNTERS: Final[Mapping[str, Metric]] = {
    name: counter(metric, unit, text, _REQUEST_HOOK, _SCHEDULER, "scheduler")
    for name, metric, unit, text in (
        ("requests_admitted", "requests_admitted", "", "Requests that came to the scheduler."),
        ("requests_finished", "requests_finished", "", "Requests that ended, answered or not."),
        ("prefill_steps", "prefill_steps", "", "Steps made up with tokens of a prompt."),
        ("scheduled_tokens", "scheduled_tokens", "tokens", "Tokens in the steps made up."),
        (
            "scheduled_prefill_tokens",
            "scheduled_prefill_tokens",
            "tokens",
            "Those of them that belong to a prompt.",
        ),
        ("prompt_tokens", "prompt_tokens", "tokens", "Tokens of the prompts that are done."),
        (
            "prompt_engine_cached_tokens",
            "prompt_engine_cached_tokens",
            "tokens",
            "Those of them that were in the engine's own prefix cache.",
        ),
        (
            "prompt_external_cached_tokens",
            "prompt_external_cached_tokens",
            "tokens",
            "Those of them that LMCache brought.",
        ),
    )
}
REQUEST_HITS: Final = counter(
    "requests_by_hit_source",
    "",
    "Requests whose prompt is done, by where most of its cached tokens came from: none, engine "
    "(its own prefix cache), external (LMCache).",
    _REQUEST_HOOK,
    (*_SCHEDULER, "source"),
    "scheduler",
)
HIT_SOURCES: Final = ("none", "engine", "external")
TTFT: Final = histogram(
    "ttft_seconds",
    "seconds",
    "Time from a request's arrival to its first token, by the most tokens of its prompt.",
    f"{_REQUEST_HOOK}, wall clock",
    (*_SCHEDULER, "prompt_tokens"),
    "scheduler",
)
REQUESTS_WAITING: Final = gauge(
    "requests_waiting",
    "",
    "Requests that wait for their first step, as the last step was made up.",
    _REQUEST_HOOK,
    _SCHEDULER,
    "scheduler",
)
REQUESTS_RUNNING: Final = gauge(
    "requests_running",
    "",
    "Requests that had a step and are not done, as the last step was made up.",
    _REQUEST_HOOK,
    _SCHEDULER,
    "scheduler",
)

_RANK: Final = ("engine", "rank")
PREFIX_LIMITED: Final = counter(
    "prefix_limited",
    "",
    "Lookups whose prefix ended where this rank lacks a chunk while all others hold more.",
    "the ranks' answers joined",
    _RANK,
    "worker",
)
PREFIX_LOST: Final = counter(
    "prefix_lost_chunks",
    "chunks",
    "Chunks behind that place which all other ranks still hold, and nobody can use.",
    "the ranks' answers joined",
    _RANK,
    "worker",
)
LOG_LINES: Final = counter(
    "log_lines",
    "",
    "Known lines in the logs of the engine's processes, by what they say.",
    "log records of LMCache and vLLM",
    ("engine", "kind"),
    "engine",
)
L1_USED: Final = gauge(
    "l1_used_bytes",
    "bytes",
    "Bytes allocated in this rank's part of the CPU memory tier.",
    "LMCache's statistics at 1 Hz",
    _RANK,
    "worker",
)
L1_CAPACITY: Final = gauge(
    "l1_capacity_bytes",
    "bytes",
    "Size of this rank's part of the CPU memory tier.",
    "LMCache's configuration",
    _RANK,
    "worker",
)

REQUEST_METRICS: Final[tuple[Metric, ...]] = (
    *REQUEST_COUNTERS.values(),
    REQUEST_HITS,
    TTFT,
    REQUESTS_WAITING,
    REQUESTS_RUNNING,
    PREFIX_LIMITED,
    PREFIX_LOST,
    LOG_LINES,
    L1_USED,
    L1_CAPACITY,
)
