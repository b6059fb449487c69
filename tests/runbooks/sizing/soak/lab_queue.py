"""A lab whose prompts come at a rate that a test draws: one prompt a step, half of it loaded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512
BLOCKS = 8  # of a prompt: half of them are of a document, half are its own
DOCUMENTS = 6
OWN_TOKENS = BLOCKS // 2 * BLOCK_TOKENS
STEP_SECONDS = 0.2  # the stated compute of a prompt's own half
# Loads, stores and messages of two ranks here, beside the stated compute.
OVERHEAD_SECONDS = 0.07
ARGUMENTS = (
    *("--ranks", "2", "--engine", "patched", "--chunk-bytes", "32768"),
    *("--tokens-per-step", str(OWN_TOKENS)),  # so that prompts are served one at a time
    *("--prefill-rate", str(round(OWN_TOKENS / STEP_SECONDS))),
)


def write_trace(
    path: Path, rho: Callable[[float], float], seconds: float, seed: int, service: float
) -> list[float]:
    """Prompts at random with `rho(at) / service` a second, as a Mooncake file; their times."""
    rng = random.Random(seed)
    most = max(rho(at) for at in range(int(seconds) + 1)) / service
    at, own, times, lines = 0.0, 1_000_000, [], []
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() >= rho(at) / service / most:
            continue
        document = rng.randrange(DOCUMENTS)
        blocks = [document * 1000 + i for i in range(BLOCKS // 2)]
        blocks += range(own, own + BLOCKS // 2)
        own += BLOCKS // 2
        times.append(at)
        lines.append(
            json.dumps(
                {
                    "timestamp": at * 1e3,
                    "input_length": BLOCKS * BLOCK_TOKENS,
                    "output_length": 1,
                    "hash_ids": blocks,
                }
            )
        )
    path.write_text("\n".join(lines) + "\n")
    return times


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def service_seconds(result: dict[str, Any]) -> tuple[float, float]:
    """The mean time of a prompt in its step, and that of its load, without the first, cold ones."""
    rows = result["requests"]["each"][DOCUMENTS:]
    load = sum(row["load_seconds"] for row in rows) / len(rows)
    whole = sum(
        row["lookup_seconds"] + row["load_seconds"] + row["compute_seconds"] for row in rows
    )
    return whole / len(rows), load
