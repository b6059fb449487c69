"""What the sizing rests on: each value with its unit and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runbooks.sizing import post

THE_POST: Final = "the post"
FITTED: Final = "fitted to the post's runaway"


@dataclass(frozen=True, slots=True)
class Value:
    """One input. `source` is a flag, a live source, or the post."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Field:
    """One input as it is asked for: `flag` without dashes, `default` and where that came from.
    `is_count`: whole numbers only; `may_be_zero`; `most` is the largest that is let in."""

    flag: str
    says: str
    unit: str
    default: float
    source: str = THE_POST
    is_count: bool = False
    may_be_zero: bool = False
    most: float = 1e15


FIELDS: Final[tuple[Field, ...]] = (
    Field("chunk-bytes", "KV of one chunk", "bytes", post.CHUNK_BYTES),
    Field("chunk-tokens", "tokens in a chunk", "tokens", post.CHUNK_TOKENS, is_count=True),
    Field("prefill-rate", "R, cold prefill", "tokens/s", post.PREFILL_TOKENS_PER_SECOND),
    Field("prompt-tokens", "length of a prompt", "tokens", post.PROMPT_TOKENS, most=1e8),
    Field("rate", "lambda, prompts offered", "1/s", post.REQUESTS / post.SECONDS, most=1e6),
    Field("ranks", "W, ranks of an engine", "", post.RANKS, is_count=True, most=1024),
    Field("shards", "N, shards there are", "", 1, is_count=True, most=1024),
    Field("shard-gbps", "what one shard delivers", "GB/s", post.ONE_SHARD_BYTES_PER_SECOND / 1e9),
    Field(
        "engine-seconds", "engine's own work for a hit", "s", 0.0,
        "the post's rho counts the load alone", may_be_zero=True,
    ),
    Field("give-up", "background loads end after", "s", post.GIVE_UP_SECONDS),
    Field(
        "loads-when-measured", "loads in flight at that rate", "", post.LOADS_WHEN_MEASURED,
        FITTED, is_count=True, most=post.MOST_LOADS,
    ),
    Field(
        "slowdown", "longer by, per waiting request", "", post.SLOWDOWN_PER_LOAD, FITTED,
        may_be_zero=True, most=1.0,
    ),
    Field("requests", "length of a simulated run", "", post.REQUESTS, is_count=True, most=20_000),
)  # fmt: skip
BY_FLAG: Final[Mapping[str, Field]] = {field.flag: field for field in FIELDS}


class InputError(ValueError):
    """A value that nothing can be computed from, in one line."""


def gather(flags: Mapping[str, float], live: Mapping[str, Value]) -> dict[str, Value]:
    """Each input from its flag, else from live data, else the post's. Raises InputError."""
    found = {}
    for field in FIELDS:
        if field.flag in flags:
            found[field.flag] = Value(flags[field.flag], f"--{field.flag}")
        elif field.flag in live:
            found[field.flag] = live[field.flag]
        else:
            found[field.flag] = Value(field.default, field.source)
    if found["shard-gbps"].source != THE_POST and "loads-when-measured" not in flags:
        found["loads-when-measured"] = Value(1, "taken as measured on loads that were alone")
    _check(found)
    return found


def checked(field: Field, text: str) -> float:
    """A flag's text as its value. Raises InputError."""
    name = f"--{field.flag}"
    wanted = "a whole number" if field.is_count else "a number"
    try:
        value = float(int(text) if field.is_count else float(text))
    except ValueError:
        raise InputError(f"{name} must be {wanted}, not {text!r}") from None
    least = "from 0" if field.may_be_zero else "above 0"
    if not (value >= 0 if field.may_be_zero else value > 0) or not value <= field.most:
        raise InputError(f"{name} must be {wanted} {least} up to {field.most:g}, not {text}")
    return value


def _check(found: Mapping[str, Value]) -> None:
    tokens, chunk = found["prompt-tokens"].value, found["chunk-tokens"].value
    if tokens < chunk:
        raise InputError(
            f"a prompt of {tokens:g} tokens has no whole chunk of {chunk:g}: nothing of it is "
            "cached; give --prompt-tokens and --chunk-tokens as the engine has them"
        )
    if tokens / chunk > 1e6:
        raise InputError(f"a prompt of {tokens / chunk:.0f} chunks is more than can be sized")
    shards, ranks = found["shards"].value, found["ranks"].value
    if shards > ranks:
        raise InputError(
            f"--shards {shards:g} is more than the {ranks:g} ranks: rank r uses shard r mod N, so "
            "the others would deliver nothing"
        )
