"""The faults the lab can make, one file each."""

from __future__ import annotations

from typing import Final

from lab.incidents.base import Incident
from lab.incidents.rank0_store import Rank0Store
from lab.incidents.slow_rank import SlowRank

INCIDENTS: Final[dict[str, Incident]] = {
    incident.name: incident for incident in (Rank0Store(), SlowRank())
}


def get(name: str) -> Incident | None:
    """The incident of that name; None for a healthy run ("")."""
    return INCIDENTS[name] if name else None
