"""rank0-store: LMCache's own default for MLA models, in which rank 0 alone stores and loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.incidents.base import Incident
from lab.settings import Settings


class Rank0Store(Incident):
    """Nothing is injected: the engine runs with the settings it ships with."""

    name = "rank0-store"
    summary = "the stock MLA default: rank 0 stores and loads every byte, the others wait for it"
    finding = "store-skew"

    def rank(self, settings: Settings) -> int:
        return 0

    def lmcache_settings(self, settings: Settings) -> dict[str, Any] | None:
        return {}

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        return True
