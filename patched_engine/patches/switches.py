"""Which patches are on: STALLSCOPE_PATCHES, a list of names that may say all, none, or -name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

VARIABLE: Final = "STALLSCOPE_PATCHES"


def switched_on(
    names: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[set[str], list[str]]:
    """(the names that are on, words that name no patch).

    Unset or empty is all. "none" is none. "a,b" is these alone; "-a" is all but a.
    """
    words = [word.strip() for word in environ.get(VARIABLE, "").split(",") if word.strip()]
    known = set(names)
    unknown = [word for word in words if word.lstrip("-") not in known | {"all", "none"}]
    chosen = [word for word in words if word in known]
    removed = {word[1:] for word in words if word.startswith("-")}
    if "none" in words:
        on: set[str] = set(chosen)
    elif chosen and "all" not in words:
        on = set(chosen)
    elif unknown and not removed and "all" not in words:
        on = set()  # a misspelt name must not switch everything on
    else:
        on = set(known)
    return on - removed, unknown
