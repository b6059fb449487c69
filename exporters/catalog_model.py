"""The metrics of the cost model: what a hit costs, what comes, and how full an engine is."""

from __future__ import annotations

from typing import Final

from exporters.catalog_metric import Metric, counter, gauge

_ENGINE: Final = ("engine",)
_PAGES: Final = "counters of the pages"


def _of_engine(name: str, unit: str, help_text: str, basis: str = _PAGES) -> Metric:
    return gauge(f"model_{name}", unit, help_text, basis, _ENGINE, "engine")


MODEL_COLD_TOKENS: Final = counter(
    "model_cold_prefill_tokens",
    "tokens",
    "Tokens of prompts computed while no load ran; over the seconds beside it, R.",
    _PAGES,
    _ENGINE,
    "engine",
)
MODEL_COLD_SECONDS: Final = counter(
    "model_cold_prefill_seconds",
    "seconds",
    "Time in the steps that computed them.",
    _PAGES,
    _ENGINE,
    "engine",
)
MODEL_TOKEN_BYTES: Final = _of_engine(
    "token_bytes", "bytes", "s: bytes that one token's KV takes in the cache."
)
MODEL_BREAK_EVEN: Final = _of_engine(
    "break_even_bytes_per_second",
    "",
    "B*, s times R: a hit pays off if the tier delivers more than this to one prompt.",
)
MODEL_OFFERED: Final = _of_engine(
    "offered_requests_per_second",
    "",
    "lambda: prompts that came, over the last 2 minutes or as long as 30 took.",
)
MODEL_SERVICE: Final = _of_engine(
    "service_seconds",
    "seconds",
    "S: time in steps for each prompt done, its load included, over the same time.",
)
MODEL_RHO: Final = _of_engine(
    "rho", "", "lambda times S: at 1 and beyond the queue has no steady state."
)
MODEL_EVALUABLE: Final = _of_engine(
    "rho_evaluable", "", "1 if rho can be said: enough prompts came, and steps are theirs."
)
MODEL_SHARD_SERVICE: Final = gauge(
    "model_shard_get_seconds",
    "seconds",
    "S of a shard: time of its main thread for each GET of the last 10 s, between the bounds.",
    "the saturation, over commandstats",
    ("shard", "bound"),
    "shard",
)

MODEL_METRICS: Final[tuple[Metric, ...]] = (
    MODEL_COLD_TOKENS,
    MODEL_COLD_SECONDS,
    MODEL_TOKEN_BYTES,
    MODEL_BREAK_EVEN,
    MODEL_OFFERED,
    MODEL_SERVICE,
    MODEL_RHO,
    MODEL_EVALUABLE,
    MODEL_SHARD_SERVICE,
)
