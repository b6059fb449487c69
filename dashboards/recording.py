"""What is kept for long and read by the boards and alerts: at most 20 series an engine pod."""

from __future__ import annotations

from typing import Final

from dashboards import foreign
from dashboards.durations import Scale
from dashboards.promql import WORKER, pick, rate, total
from dashboards.rule_model import Recording
from exporters import catalog

SERIES_A_POD: Final = 20
SHORT_SECONDS: Final = 300
LONG_SECONDS: Final = 3600
RATE_SECONDS: Final = 120  # at least four scrapes of 30 s
WHERE: Final = "cluster, namespace"
ENGINE: Final = f"{WHERE}, engine"
SHARD: Final = f"{WHERE}, shard"
MODEL: Final = f"{WHERE}, model_name"

# The names by which boards and alerts find them.
STEP_SHARE: Final = "engine:stallscope_step_seconds:rate2m"
RHO: Final = "engine:stallscope_model_rho:max"
BREAK_EVEN: Final = "engine:stallscope_model_break_even_bytes_per_second:max"
LOST_SHARE: Final = "engine:stallscope_collective_charged_seconds:max_rate2m"
WAIT_SHARE: Final = "engine:stallscope_collective_wait_seconds:avg_rate2m"
STORE_RATE: Final = "engine:stallscope_store_bytes:rate2m"
STORE_SHARE: Final = "engine:stallscope_store_bytes:max_share2m"
LOAD_RATE: Final = "engine_tier:stallscope_load_bytes:rate2m"
LOAD_BANDWIDTH: Final = "engine:stallscope_load_bytes:per_load_second2m"
HIT_RATIO: Final = "engine:stallscope_lookup_hit_tokens:ratio2m"
TIMEOUT_RATE: Final = "engine:stallscope_lookup_timeouts:rate2m"
PENDING_AGE: Final = "engine:stallscope_pending_oldest_age_seconds:max"
FINDINGS: Final = "engine_severity:stallscope_finding:count"
SATURATION: Final = "shard_bound:stallscope_shard_main_thread_saturation:max"
SHARD_UP: Final = "shard:stallscope_shard_up:min"


def recordings(scale: Scale) -> tuple[Recording, ...]:
    """The recording rules of pods and shards."""
    window = scale.text(RATE_SECONDS)

    def spent(metric: catalog.Metric) -> str:
        return rate(metric, window=window)

    charged = total(f"{ENGINE}, rank", spent(catalog.COLLECTIVE_CHARGED))
    entered = pick(_page("collectives"), WORKER)
    ranks = f"count by ({ENGINE}) ({total(f'{ENGINE}, rank', entered)})"
    stored = total(f"{ENGINE}, rank", spent(_page("store_bytes")))
    loaded = total(ENGINE, spent(catalog.LOAD_BYTES))
    # All ranks load at once: the time of a load is that of the rank that took longest.
    load_seconds = total(f"{ENGINE}, rank", spent(_page("load_nanoseconds")))
    loading = f"max by ({ENGINE}) ({load_seconds})"
    asked = total(ENGINE, spent(_page("lookup_asked_tokens")))
    hit = total(ENGINE, spent(_page("lookup_hit_tokens")))
    step = rate(_page("step_nanoseconds"), WORKER, window=window)
    return (
        Recording(STEP_SHARE, f"max by ({ENGINE}) ({step})", 1),
        Recording(RHO, f"max by ({ENGINE}) ({pick(catalog.MODEL_RHO)})", 1),
        Recording(BREAK_EVEN, f"max by ({ENGINE}) ({pick(catalog.MODEL_BREAK_EVEN)})", 1),
        Recording(
            LOST_SHARE,
            # W - 1 ranks wait at a time, and the wait charged is in rank-seconds.
            f"max by ({ENGINE}) ({charged}) / ({ranks} - 1 > 0)",
            1,
        ),
        Recording(
            WAIT_SHARE,
            f"avg by ({ENGINE}) ({total(f'{ENGINE}, rank', spent(catalog.COLLECTIVE_WAIT))})",
            1,
        ),
        Recording(STORE_RATE, f"sum by ({ENGINE}) ({stored})", 1),
        Recording(
            STORE_SHARE, f"max by ({ENGINE}) ({stored}) / (sum by ({ENGINE}) ({stored}) > 0)", 1
        ),
        Recording(LOAD_RATE, total(f"{ENGINE}, tier", spent(catalog.LOAD_BYTES)), 2),
        Recording(LOAD_BANDWIDTH, f"{loaded} / ({loading} > 0)", 1),
        Recording(HIT_RATIO, f"{hit} / ({asked} > 0)", 1),
        Recording(TIMEOUT_RATE, total(ENGINE, spent(_page("lookup_timeouts"))), 1),
        Recording(PENDING_AGE, f"max by ({ENGINE}) ({pick(catalog.PENDING_AGE)})", 1),
        Recording(FINDINGS, f"count by ({ENGINE}, severity) ({pick(catalog.FINDING)} == 1)", 2),
        Recording(SATURATION, f"max by ({SHARD}, bound) ({pick(catalog.SHARD_SATURATION)})"),
        Recording(SHARD_UP, f"min by ({SHARD}) ({pick(catalog.SHARD_UP)})"),
        *_ttft(scale),
    )


def ttft_over(limit_seconds: float, window_seconds: float) -> str:
    """The name of the share of requests whose first token took longer than a limit."""
    return f"model:vllm_ttft_over_{limit_seconds:g}s:ratio_rate{Scale().text(window_seconds)}"


def ttft_mean(window_seconds: float) -> str:
    return f"model:vllm_ttft_seconds:mean{Scale().text(window_seconds)}"


def ttft_count(window_seconds: float) -> str:
    return f"model:vllm_ttft_requests:increase{Scale().text(window_seconds)}"


TTFT_LIMITS_SECONDS: Final = (30.0, 70.0)
TTFT_WINDOWS_SECONDS: Final = (SHORT_SECONDS, LONG_SECONDS)


def le(limit_seconds: float) -> str:
    """A matcher for the bucket of a limit, which some clients write as 30 and some as 30.0."""
    return f'le=~"{limit_seconds:g}([.]0)?"'


def share_over(limit_seconds: float, window: str, labels: str = MODEL, *matchers: str) -> str:
    """The share of requests over a limit. An engine whose histogram lacks the bucket is left out
    of both parts: counted in one alone, all of its requests would be over the limit."""
    within = rate(foreign.TTFT_BUCKET, le(limit_seconds), *matchers, window=window)
    counted = rate(foreign.TTFT_COUNT, *matchers, window=window)
    judged = total(labels, f"{counted} and ignoring (le) {within}")
    return f"1 - {total(labels, within)} / ({judged} > 0)"


def _ttft(scale: Scale) -> tuple[Recording, ...]:
    """Of a model's requests over all its pods, so that they cost no series a pod."""
    found = []
    for window_seconds in TTFT_WINDOWS_SECONDS:
        window = scale.text(window_seconds)
        for limit in TTFT_LIMITS_SECONDS:
            found.append(Recording(ttft_over(limit, window_seconds), share_over(limit, window)))
        count = total(MODEL, rate(foreign.TTFT_COUNT, window=window))
        spent = total(MODEL, rate(foreign.TTFT_SUM, window=window))
        increase = total(MODEL, f"increase({foreign.TTFT_COUNT}[{window}])")
        found.append(Recording(ttft_mean(window_seconds), f"{spent} / ({count} > 0)"))
        found.append(Recording(ttft_count(window_seconds), increase))
    return tuple(found)


def _page(name: str) -> catalog.Metric:
    return catalog.PAGE_COUNTERS[name]
