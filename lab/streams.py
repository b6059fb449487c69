"""The requests of a run, open loop: each has its arrival time whatever the engine is doing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.settings import BLOCK_TOKENS, Settings, SettingsError

SHARED_DOCUMENTS: Final = 12
_OWN_BLOCKS_FROM: Final = 1_000_000  # ids of blocks that no other request shares


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: `block_ids` name its 512-token blocks; equal leading ids are a shared prefix."""

    id: str
    arrival_seconds: float
    length_tokens: int
    block_ids: tuple[int, ...]


def load(settings: Settings) -> list[Request]:
    """All requests that arrive within the run. Raises SettingsError for a file that is none."""
    source = _from_file(settings) if settings.requests_file else _hit_heavy(settings)
    chosen: list[Request] = []
    for request in source:
        if request.arrival_seconds >= settings.seconds:
            break
        chosen.append(request)
    if not chosen:
        raise SettingsError(f"no request arrives within {settings.seconds:g} s")
    return chosen


def _from_file(settings: Settings) -> Iterator[Request]:
    """Mooncake's JSONL: timestamp (ms), input_length, hash_ids of 512-token blocks."""
    path = Path(settings.requests_file)
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield _mooncake(line, number, settings.time_scale)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SettingsError(f"--requests {path}: {reason}") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise SettingsError(
            f"--requests {path}: line {number + 1} is not a Mooncake request ({error})"
        ) from None


def _mooncake(line: str, number: int, time_scale: float) -> Request:
    row: dict[str, Any] = json.loads(line)
    block_ids = tuple(int(value) for value in row["hash_ids"])
    length = min(int(row["input_length"]), len(block_ids) * BLOCK_TOKENS)
    if length < 1:
        raise ValueError("an empty prompt")
    return Request(f"m{number}", float(row["timestamp"]) / 1e3 * time_scale, length, block_ids)


def _hit_heavy(settings: Settings) -> Iterator[Request]:
    """Prompts whose first `hit_rate` is one of a few shared documents, the rest their own."""
    chance = random.Random(f"requests {settings.seed}")
    now_seconds, own_block = 0.0, _OWN_BLOCKS_FROM
    for number in range(1 << 30):
        length = chance.randint(settings.prompt_tokens_low, settings.prompt_tokens_high)
        blocks = -(-length // BLOCK_TOKENS)
        shared = round(settings.hit_rate * length / BLOCK_TOKENS)
        document = chance.randrange(SHARED_DOCUMENTS)
        block_ids = [document * 10_000 + i for i in range(shared)]
        block_ids += range(own_block, own_block + blocks - shared)
        own_block += blocks - shared
        yield Request(f"s{number}", now_seconds * settings.time_scale, length, tuple(block_ids))
        now_seconds += chance.expovariate(settings.request_rate)
