"""The metrics of vLLM that rules and boards read, as vLLM 0.32 exposes them."""

from __future__ import annotations

from typing import Final

# A test holds each of these against the source of an installed vLLM.
VLLM_VERSION: Final = "0.32.0"
TTFT: Final = "vllm:time_to_first_token_seconds"
TTFT_COUNT: Final = f"{TTFT}_count"
TTFT_SUM: Final = f"{TTFT}_sum"
TTFT_BUCKET: Final = f"{TTFT}_bucket"
RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
QUEUE_SUM: Final = "vllm:request_queue_time_seconds_sum"
QUEUE_COUNT: Final = "vllm:request_queue_time_seconds_count"
PREFILL_SUM: Final = "vllm:request_prefill_time_seconds_sum"
PREFILL_COUNT: Final = "vllm:request_prefill_time_seconds_count"

VLLM_METRICS: Final = frozenset(
    (
        TTFT_COUNT,
        TTFT_SUM,
        TTFT_BUCKET,
        RUNNING,
        WAITING,
        QUEUE_SUM,
        QUEUE_COUNT,
        PREFILL_SUM,
        PREFILL_COUNT,
    )
)
# Prometheus itself writes these for every target.
PROMETHEUS_METRICS: Final = frozenset(("up", "ALERTS"))
