"""What the rules on stuck clients share: suspects over several pictures, and what a shard owes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from detectors import thresholds as t
from exporters import reasons
from exporters.snapshot import (
    Engine,
    Evidence,
    Pending,
    Process,
    Shard,
    ShardClient,
    ShardQuestion,
    Snapshot,
)

CLIENT_KINDS: Final = frozenset({"exists", "get", "set"})
# Reasons of a shard that is not up which say that it is the server that fails, and not our asking.
DOWN_REASONS: Final = frozenset({reasons.CONNECTION_REFUSED, reasons.TIMEOUT, reasons.UNREACHABLE})


def pictures(snapshot: Snapshot) -> tuple[Snapshot, ...]:
    """This picture and earlier ones a second apart, newest first, at most PICTURES."""
    chosen = [snapshot]
    for earlier in reversed(snapshot.earlier):
        if len(chosen) == t.PICTURES:
            break
        if chosen[-1].now_seconds - earlier.now_seconds >= t.PICTURE_SPACING_SECONDS:
            chosen.append(earlier)
    return tuple(chosen)


def is_down(shard: Shard) -> bool:
    """Whether the server itself fails: refuses, does not answer, or still loads its data."""
    return shard.reason in DOWN_REASONS if not shard.up else bool(shard.number("loading"))


def uses_a_down_shard(process: Process, snapshot: Snapshot) -> bool:
    """Whether what this process waits for is explained by its shard (or was a moment ago)."""
    return any(
        shard is not None and is_down(shard)
        for picture in pictures(snapshot)
        for shard in (picture.shard(process.shard),)
    )


def limit_seconds(entry: Pending) -> float:
    """The age from which an entry was never answered."""
    return t.STUCK_TIMEOUTS * (entry.timeout_seconds or t.UNKNOWN_TIMEOUT_SECONDS)


def pending_in(picture: Snapshot, process: Process) -> tuple[Pending, ...]:
    """The process's entries in another picture."""
    there = picture.process(process)
    return there.pending if there is not None else ()


def seen_in(process: Process, entry: Pending, chosen: Sequence[Snapshot], age: float) -> int:
    """In how many of the pictures the same entry stands, older than `age` seconds in each."""
    return sum(
        any(p.id == entry.id and p.age_seconds >= age for p in pending_in(picture, process))
        for picture in chosen
    )


def keys_of(process: Process, entry: Pending) -> tuple[str, ...]:
    """All keys of an overdue entry where the page has them, else its first, as far as it goes."""
    listed = process.info.get("overdue")
    for item in listed if isinstance(listed, list) else ():
        keys = item.get("keys") if isinstance(item, dict) else None
        if not isinstance(keys, list) or not keys or item.get("kind") != entry.kind:
            continue
        if item.get("key_count") == entry.key_count and str(keys[0]).startswith(entry.first_key):
            return tuple(map(str, keys))
    return (entry.first_key,) if entry.first_key else ()


def connections_of(process: Process) -> tuple[str, ...]:
    """This process's ends of its connections to the shard."""
    listed = process.info.get("connections")
    return tuple(map(str, listed)) if isinstance(listed, list) else ()


def questions(process: Process, keys: tuple[str, ...] = ()) -> tuple[ShardQuestion, ...]:
    """How this process's connections stand at its shard; none where that shard is not asked."""
    if not process.shard:
        return ()
    return (ShardQuestion(process.shard, connections_of(process), keys),)


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the shard shows of one process: "clear" (it owes nothing), "owes", or "unseen"."""

    state: Literal["clear", "owes", "unseen"]
    text: str
    idle_seconds: int | None = None  # of the connection used last
    commands: int | None = None  # executed between the first and the last picture

    def evidence(self) -> Evidence:
        """The figure for the finding: connections that are owed something."""
        value = {"clear": 0.0, "owes": 1.0, "unseen": float("nan")}[self.state]
        return Evidence("server_outstanding", value, 0.0, "", self.text)


def server_side(process: Process, chosen: Sequence[Snapshot]) -> ServerSide:
    """Whether the shard owes this process an answer.

    A connection on which something is under way in every picture may owe it. One that is clear in
    any picture had by then answered all that was sent on it: Valkey answers in order, and it read
    the request at the latest when it read our own question.
    """
    if not process.shard:
        return ServerSide("unseen", "the shard was not asked (no --valkey URL names it)")
    connections = connections_of(process)
    if not connections:
        return ServerSide("unseen", "the page does not list the rank's connections")
    views = []
    for picture in chosen:
        shard = picture.shard(process.shard)
        if shard is not None and shard.clients is not None:
            views.append({client.address: client for client in shard.clients})
    if not views:
        return ServerSide("unseen", "the shard does not show its clients (CLIENT LIST)")
    matched = [a for a in connections if a in views[0]]
    if not matched:
        return ServerSide(
            "unseen",
            f"none of the rank's {len(connections)} connections is among the shard's clients",
        )
    owing = [a for a in matched if all(view[a].is_owed for view in views if a in view)]
    newest, oldest = views[0], views[-1]
    commands = _executed(matched, newest, oldest) if len(views) > 1 else None
    text = (
        f"at the shard {len(owing)} of the rank's {len(matched)} connections have an answer "
        "outstanding (CLIENT LIST: qbuf, argv-mem, obl, oll, omem)"
    )
    if commands is not None:
        text += f"; {commands} commands of theirs ran meanwhile"
    return ServerSide(
        "owes" if owing else "clear",
        text,
        min(newest[a].idle_seconds for a in matched),
        commands,
    )


def _executed(
    matched: Sequence[str], newest: dict[str, ShardClient], oldest: dict[str, ShardClient]
) -> int | None:
    total = 0
    for address in matched:
        now, before = newest[address].commands, oldest.get(address)
        if now is None or before is None or before.commands is None:
            return None
        total += now - before.commands
    return total


def is_not_queued(process: Process, entry: Pending, chosen: Sequence[Snapshot]) -> bool:
    """Whether the entry cannot be waiting its turn inside the client: in some picture nothing else
    was under way, or a call that came later has been answered."""
    later: set[int] = set()
    for picture in reversed(chosen):  # oldest first
        there = [p for p in pending_in(picture, process) if p.kind in CLIENT_KINDS]
        ids = {p.id for p in there}
        if later - ids:
            return True
        if all(p.age_seconds >= limit_seconds(p) for p in there if p.id != entry.id):
            return True
        later |= {i for i in ids if i > entry.id}
    first = chosen[-1].process(process)
    if first is None:
        return False
    began = process.counters.get("client_calls", 0) - first.counters.get("client_calls", 0)
    newest_before = max((p.id for p in first.pending), default=0)
    fresh = sum(p.kind in CLIENT_KINDS and p.id > newest_before for p in process.pending)
    return began > fresh


def who_waits(engine: Engine, rank: int | None) -> tuple[Evidence, ...]:
    """Who stands in a collective that this rank does not come to."""
    waited = max(
        (o for g in engine.groups for o in g.open if rank in o.missing_ranks),
        key=lambda o: o.open_seconds,
        default=None,
    )
    if waited is None or waited.open_seconds < t.MISSING_WAIT_SECONDS:
        return ()
    inside = ", ".join(map(str, waited.present_ranks))
    text = (
        f"{'ranks' if len(waited.present_ranks) > 1 else 'rank'} {inside} wait in {waited.op} "
        f"number {waited.sequence} for {waited.open_seconds:.1f} s: it stands inside the step"
    )
    return (Evidence("open_seconds", waited.open_seconds, None, "seconds", text),)


def place_of(process: Process) -> str:
    """ "rank 3 (pid 17)", or the role of a process without a rank."""
    name = f"rank {process.rank}" if process.rank is not None else "_".join(process.roles)
    return f"{name} (pid {process.pid})"


def alive(engine: Engine) -> tuple[Process, ...]:
    """The processes that run: what a frozen or dead one waits for says nothing."""
    return tuple(p for p in engine.processes if p.liveness == "alive")
