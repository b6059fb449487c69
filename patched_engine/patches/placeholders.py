"""`{rank}` in remote_url: each rank has its own shard (LMCache #5548; post, Bottleneck 3)."""

from __future__ import annotations

import re
from typing import Final

RANK: Final = "{rank}"
_ANY: Final = re.compile(r"\{[^{}]*\}?|\}")


class PlaceholderError(ValueError):
    """A URL with a placeholder that nobody can fill; the message is one line."""


def placeholders(url: str) -> list[str]:
    """Every placeholder in it, and stray braces, in order."""
    return _ANY.findall(url)


def check(url: str) -> None:
    """Raises PlaceholderError for any placeholder but {rank}."""
    for found in placeholders(url):
        if found != RANK:
            shown = url.rpartition("@")[2]
            raise PlaceholderError(
                f"remote_url {shown}: unknown placeholder {found}: only {RANK} is filled in"
            )


def fill(url: str, rank: int) -> str:
    """The URL of one rank's shard. Raises PlaceholderError."""
    check(url)
    return url.replace(RANK, str(rank))
