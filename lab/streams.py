"""The requests of a run, open loop: each has its arrival time whatever the engine is doing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.settings import BLOCK_TOKENS, Settings, SettingsError

SHARED_DOCUMENTS: Final = 6
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
    """Conversations: prompts whose first `hit_rate` is a document, the rest their own.

    A document is asked about once or twice in a row, then the next one, round and round: a turn
    that follows at once finds its KV in L1, one that comes a round later in L2. A prompt that
    finds it in both is rare on purpose: for that one LMCache's load makes a second, untimed EXISTS
    call, in which the stock client loses completions so often that few runs would reach their end.
    """
    chance = random.Random(f"requests {settings.seed}")
    lengths = _document_prompts(settings, chance)
    now_seconds, own_block, number = 0.0, _OWN_BLOCKS_FROM, 0
    for turn in range(1 << 30):
        document = turn % SHARED_DOCUMENTS
        length = lengths[document]
        blocks = -(-length // BLOCK_TOKENS)
        shared = round(settings.hit_rate * length / BLOCK_TOKENS)
        for _ in range(chance.randint(1, 2)):
            block_ids = [document * 10_000 + i for i in range(shared)]
            block_ids += range(own_block, own_block + blocks - shared)
            own_block += blocks - shared
            yield Request(f"s{number}", now_seconds * settings.time_scale, length, tuple(block_ids))
            number += 1
            now_seconds += chance.expovariate(settings.scaled_request_rate)


def _document_prompts(settings: Settings, chance: random.Random) -> list[int]:
    """The length in tokens of the prompts about each document, spread evenly over the range."""
    low, high = settings.prompt_tokens_low, settings.prompt_tokens_high
    spread = [low + (high - low) * i // (SHARED_DOCUMENTS - 1) for i in range(SHARED_DOCUMENTS)]
    chance.shuffle(spread)
    return spread
