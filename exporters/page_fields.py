"""The names of what a page holds, in the order of its words: counters, marks, gauges, kinds.

Part of `exporters.page_layout`, which shows them. Append only: a position is the layout.
"""

from __future__ import annotations

from exporters.log_lines import KINDS as _KINDS_OF_LINES

# The time to the first token of a request, by the length of its prompt: prompts of up to so many
# tokens, and times of up to so many seconds. The times include the gates of the post (30 and 70 s).
TTFT_BANDS_TOKENS = (8_192, 32_768, 98_304)
TTFT_BOUNDS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 50.0, 70.0, 120.0)
TTFT_BAND_COUNT = len(TTFT_BANDS_TOKENS) + 1
TTFT_BUCKET_COUNT = len(TTFT_BOUNDS_SECONDS) + 1

LOG_KINDS = _KINDS_OF_LINES

# Cumulative counters, in lane order. Append only: a position is the layout.
COUNTERS = (
    "steps",
    "step_nanoseconds",
    "collectives",
    "hook_faults",
    "ring_drops",
    "pending_drops",
    "store_calls",
    "store_tokens",
    "store_chunks",
    "store_bytes",
    "store_expected_chunks",
    "store_nanoseconds",
    "load_calls",
    "load_asked_tokens",
    "load_tokens",
    "load_l1_chunks",
    "load_l1_bytes",
    "load_l2_chunks",
    "load_l2_bytes",
    "load_nanoseconds",
    "lookup_calls",
    "lookup_asked_tokens",
    "lookup_hit_tokens",
    "lookup_nanoseconds",
    "lookup_timeouts",
    "put_l2_chunks",
    "put_l2_bytes",
    "client_calls",
    "client_asked_keys",
    "client_failed_calls",
    "client_get_answered_keys",
    "client_get_failed_keys",
    "load_wasted_bytes",
    "throttled_nanoseconds",
    "runqueue_nanoseconds",
    "major_faults",
    "gc_pauses",
    "gc_nanoseconds",
    "load_short_calls",
    "prefetch_late_calls",
    "requests_admitted",
    "requests_finished",
    "prefill_steps",
    "scheduled_tokens",
    "scheduled_prefill_tokens",
    "prompt_tokens",
    "prompt_engine_cached_tokens",
    "prompt_external_cached_tokens",
    "requests_hit_none",
    "requests_hit_engine",
    "requests_hit_external",
    # One bucket counts what the bucket before it does not: the reader adds them up.
    *(
        f"ttft_{band}_bucket_{bucket}"
        for band in range(TTFT_BAND_COUNT)
        for bucket in range(TTFT_BUCKET_COUNT)
    ),
    *(f"ttft_{band}_nanoseconds" for band in range(TTFT_BAND_COUNT)),
    *(f"log_{kind}" for kind in LOG_KINDS),
)
COUNTER_INDEX = {name: i for i, name in enumerate(COUNTERS)}
LANE_WORDS = 192
LANE_COUNT = 65  # the last one takes what threads that found no lane free have counted
SHARED_LANE = LANE_COUNT - 1

# Timestamps (0: never). Each has one writer.
MARKS = (
    "heartbeat",
    "step_started",
    "step_finished",
    "store_started",
    "store_finished",
    "load_started",
    "load_finished",
    "lookup_started",
    "lookup_finished",
    "prefill_scheduled",
    "l1_read",
)
MARK_INDEX = {name: i for i, name in enumerate(MARKS)}
MARK_WORDS = 32

# Amounts that go up and down. Each has one writer.
GAUGES = ("requests_waiting", "requests_running", "l1_used_bytes", "l1_capacity_bytes")
GAUGE_INDEX = {name: i for i, name in enumerate(GAUGES)}
GAUGE_WORDS = 16

# Operations of process groups. Append only.
OPS = (
    "unknown",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
)
OP_INDEX = {name: i for i, name in enumerate(OPS)}
SYMMETRIC_OPS = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier"})

# How the time of a ring record was measured. "none": an asynchronous call seen from the host,
# whose times are never published as wait.
BASES = ("none", "host", "cuda_event", "profiler")
BASIS_INDEX = {name: i for i, name in enumerate(BASES)}

KINDS = ("none", "store", "load", "lookup", "exists", "get", "set", "prefetch")
KIND_INDEX = {name: i for i, name in enumerate(KINDS)}
TIERS = ("", "l1", "l2", "mixed")
TIER_INDEX = {name: i for i, name in enumerate(TIERS)}
