"""The fixes of LMCache, one file each, put into the unmodified wheel as it is imported."""

from __future__ import annotations

from typing import Final

from patched_engine.patches import (
    executor,
    longest_prompt,
    prefetch_keys,
    rank_url,
    refusals,
    release_once,
    resp_backend,
    sharded_store,
)
from patched_engine.patches import installing as _installing
from patched_engine.patches.patch import Patch, PatchState, states

PATCHES: Final[tuple[Patch, ...]] = (
    rank_url.PATCH,
    prefetch_keys.PATCH,
    executor.PATCH,
    resp_backend.PATCH,
    release_once.PATCH,
    sharded_store.PATCH,
    longest_prompt.PATCH,
    refusals.PATCH,
)


def install() -> None:
    """Put in every patch that STALLSCOPE_PATCHES leaves on, now or when its target is imported."""
    _installing.install(PATCHES)


__all__ = ["PATCHES", "Patch", "PatchState", "install", "states"]
