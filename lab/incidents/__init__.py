"""The faults the lab can make, one file each."""

from __future__ import annotations

from typing import Final

from lab.incidents.base import Incident
from lab.incidents.busy_shard import BusyShard
from lab.incidents.cut_connections import CutConnections
from lab.incidents.dead_shard import DeadShard
from lab.incidents.evicted_keys import EvictedKeys
from lab.incidents.frozen_shard import FrozenShard
from lab.incidents.lost_completion import LostCompletion
from lab.incidents.lost_keys import LostKeys
from lab.incidents.missing_key import MissingKey
from lab.incidents.rank0_store import Rank0Store
from lab.incidents.restarted_shard import RestartedShard
from lab.incidents.slow_rank import SlowRank
from lab.incidents.two_seeds import TwoSeeds

INCIDENTS: Final[dict[str, Incident]] = {
    incident.name: incident
    for incident in (
        Rank0Store(),
        SlowRank(),
        LostCompletion(),
        MissingKey(),
        EvictedKeys(),
        CutConnections(),
        DeadShard(),
        FrozenShard(),
        BusyShard(),
        RestartedShard(),
        LostKeys(),
        TwoSeeds(),
    )
}


def get(name: str) -> Incident | None:
    """The incident of that name; None for a healthy run ("")."""
    return INCIDENTS[name] if name else None
