"""Join the ranks' rings: who waited in which collective, who came last, and who is still missing.

One GroupJoiner a process group. It takes each rank's new ring entries every tick, and a collective
counts once all W entries are there and closed (design, Definitions). What cannot be joined is
counted as unjoined, never guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporters import page_layout as layout
from exporters import reasons
from exporters.readers.page import PageSample
from exporters.readers.rings import Entry
from exporters.snapshot import (
    Basis,
    CollectiveSecond,
    Group,
    GroupTotal,
    Mismatch,
    OpenCollective,
)

NANOSECONDS = 1_000_000_000
KEPT_SECONDS = 120
# Incomplete collectives kept; older ones are overwritten in the rings by then.
MOST_WAITING = layout.RING_RECORDS
MOST_OPEN_SHOWN = 8
MOST_MISMATCHES = 8
# All ranks are in and none has left: worth showing once it is longer than any usual collective.
ALL_IN_SECONDS = 1.0

_SYMMETRIC = frozenset(layout.OP_INDEX[op] for op in layout.SYMMETRIC_OPS)
_NONE = layout.BASIS_INDEX["none"]
_HOST = layout.BASIS_INDEX["host"]
_BASES: dict[int, Basis] = {
    layout.BASIS_INDEX["host"]: "host",
    layout.BASIS_INDEX["cuda_event"]: "cuda_event",
    layout.BASIS_INDEX["profiler"]: "profiler",
}

# (incarnation, ring) of each member, None where its page is not there.
Members = tuple[tuple[int, int] | None, ...]


class _Tally:
    """Sums over joined collectives, by member."""

    __slots__ = ("charged_ns", "count", "last", "wait_ns")

    def __init__(self, size: int) -> None:
        self.count = 0
        self.wait_ns = [0] * size
        self.charged_ns = [0] * size
        self.last = [0] * size

    def add(self, waits_ns: Sequence[int], last: int) -> None:
        self.count += 1
        wait_ns = self.wait_ns
        total = 0
        for i, wait in enumerate(waits_ns):
            wait_ns[i] += wait
            total += wait
        self.charged_ns[last] += total
        self.last[last] += 1


@dataclass(slots=True)
class _Progress:
    """How far one member's ring was read, as group sequences; 0 is nothing yet."""

    first: int = 0
    first_arrive_ns: int = 0
    newest: int = 0
    newest_before: int = 0  # `newest` at the tick before


def symmetric_wait(entries: Sequence[Entry]) -> tuple[list[int], int] | None:
    """(wait in ns, position of the last) of one closed symmetric collective; None: not one.

    wait_r = d_r - min d. The last is the one with min d, on a tie the latest to arrive. On a
    shared clock nobody leaves before all have come; where somebody did, the entries belong to
    different collectives.
    """
    if entries[0].basis == _HOST:
        if min(e.depart_ns for e in entries) < max(e.arrive_ns for e in entries):
            return None
        durations = [e.depart_ns - e.arrive_ns for e in entries]
    else:
        durations = [e.duration_ns for e in entries]
    shortest = min(durations)
    last = durations.index(shortest)
    if durations.count(shortest) > 1:
        last = max(
            (i for i, d in enumerate(durations) if d == shortest),
            key=lambda i: entries[i].arrive_ns,
        )
    return [d - shortest for d in durations], last


def rooted_wait(entries: Sequence[Entry]) -> tuple[list[int], int]:
    """(wait in ns, position of the last) of a rooted operation: wait_r = max arrive - arrive_r."""
    arrivals = [e.arrive_ns for e in entries]
    latest = max(arrivals)
    return [latest - a for a in arrivals], arrivals.index(latest)


@dataclass(slots=True)
class GroupJoiner:
    """The running join of one group. Totals last for the joiner's life, the rest for one set of
    member incarnations."""

    name: str
    ranks: tuple[int, ...]
    members: Members = ()
    last_named_ns: int = 0
    unjoined: int = 0
    async_only: int = 0
    _totals: dict[tuple[int, int], _Tally] = field(default_factory=dict)
    _seconds: dict[int, _Tally] = field(default_factory=dict)
    _waiting: dict[int, list[Entry | None]] = field(default_factory=dict)
    _progress: list[_Progress] = field(default_factory=list)
    _known: list[tuple[int, int] | None] = field(default_factory=list)
    _settled: int = 0  # highest sequence joined or given up
    _mismatches: deque[Mismatch] = field(default_factory=lambda: deque(maxlen=MOST_MISMATCHES))

    def follow(self, members: Members) -> None:
        """Name this tick's members. Another incarnation of any begins the join anew; one that is
        only unread for a while does not."""
        if not self._known or any(
            now is not None and known is not None and now != known
            for now, known in zip(members, self._known, strict=True)
        ):
            self._known = [None] * len(self.ranks)
            self._settled = 0
            self._seconds.clear()
            self._waiting.clear()
            self._mismatches.clear()
            self._progress = [_Progress() for _ in self.ranks]
        self.members = members
        self._known = [
            known if now is None else now for now, known in zip(members, self._known, strict=True)
        ]

    def take(self, member: int, entries: Sequence[Entry]) -> None:
        """Add one member's new (or newly closed) entries."""
        if not entries:
            return
        waiting = self._waiting
        size = len(self.ranks)
        progress = self._progress[member]
        if progress.first == 0:
            earliest = min(entries, key=lambda e: e.sequence)
            progress.first, progress.first_arrive_ns = earliest.sequence, earliest.arrive_ns
        first = progress.first
        newest = progress.newest
        settled = self._settled
        for entry in entries:
            sequence = entry[0]
            if sequence > newest:
                newest = sequence
            elif sequence < first:
                progress.first, first = sequence, sequence
            slots = waiting.get(sequence)
            if slots is None:
                if sequence <= settled:  # a page opened again begins with what was joined before
                    continue
                slots = waiting[sequence] = [None] * size
            slots[member] = entry
        progress.newest = newest

    def settle(self, now_ns: int) -> None:
        """Join what is complete, give up what cannot become so, forget what is old."""
        begin = self._begin()
        newest = max((p.newest for p in self._progress), default=0)
        for sequence in sorted(self._waiting):
            slots = self._waiting[sequence]
            if begin and sequence < begin:
                pass  # from before the first entry that some ring still held
            elif None not in slots:
                entries: list[Entry] = slots  # type: ignore[assignment]  # no None in it
                if not all(e.depart_ns or e.basis == _NONE for e in entries):
                    if sequence > newest - MOST_WAITING:
                        continue
                    self.unjoined += 1  # a departure that was never written
                else:
                    self._join(entries)
            elif self._passed(sequence, slots) or sequence <= newest - MOST_WAITING:
                self.unjoined += 1
            else:
                continue
            del self._waiting[sequence]
            self._settled = max(self._settled, sequence)
        for progress in self._progress:
            progress.newest_before = progress.newest
        oldest_second = now_ns // NANOSECONDS - KEPT_SECONDS
        for second in [s for s in self._seconds if s < oldest_second]:
            del self._seconds[second]

    def _begin(self) -> int:
        """The first sequence that every ring still held; 0 while a ring is empty."""
        firsts = [p.first for p in self._progress]
        return max(firsts, default=0) if all(firsts) else 0

    def _passed(self, sequence: int, slots: Sequence[Entry | None]) -> bool:
        """Whether a member without an entry was already beyond it at the tick before: a record
        that was torn or half written has by now been read again."""
        return any(
            slot is None and progress.newest_before > sequence
            for slot, progress in zip(slots, self._progress, strict=True)
        )

    def _join(self, entries: Sequence[Entry]) -> None:
        op, basis = entries[0].op, entries[0].basis
        if any(e.op != op for e in entries):  # that needs no times
            self._mismatches.append(_mismatch(entries))
        if any(e.basis == _NONE for e in entries):
            self.async_only += 1
            return
        if any(e.op != op or e.basis != basis for e in entries) or basis not in _BASES:
            self.unjoined += 1
            return
        if op in _SYMMETRIC:
            result = symmetric_wait(entries)
        elif basis == _HOST:
            result = rooted_wait(entries)
        else:
            self.async_only += 1  # its arrival on the device is not on a shared clock
            return
        if result is None:
            self.unjoined += 1
            return
        waits_ns, last = result
        key = (op, basis)
        if key not in self._totals:
            self._totals[key] = _Tally(len(self.ranks))
        self._totals[key].add(waits_ns, last)
        if op in _SYMMETRIC:
            second = max(e.arrive_ns for e in entries) // NANOSECONDS
            if second not in self._seconds:
                self._seconds[second] = _Tally(len(self.ranks))
            self._seconds[second].add(waits_ns, last)

    def group(self, now_ns: int) -> Group:
        """The group as the Snapshot shows it."""
        return Group(
            name=self.name,
            ranks=self.ranks,
            seconds=self._dense_seconds(now_ns),
            totals=tuple(
                GroupTotal(
                    op=layout.OPS[op],
                    basis=_BASES[basis],
                    count=tally.count,
                    wait_seconds=_seconds(tally.wait_ns),
                    charged_seconds=_seconds(tally.charged_ns),
                    last_count=tuple(tally.last),
                )
                for (op, basis), tally in sorted(self._totals.items())
            ),
            open=self._open(now_ns),
            unjoined=self.unjoined,
            unseen_reason=self._unseen_reason(),
            mismatches=(*self._mismatches, *self._stuck_mismatches()),
        )

    def _stuck_mismatches(self) -> list[Mismatch]:
        """Ranks that are inside of different operations now, and will not leave them."""
        begin = self._begin()
        return [
            _mismatch(slots)
            for sequence, slots in self._waiting.items()
            if sequence >= begin and len({e.op for e in slots if e is not None}) > 1
        ][:MOST_OPEN_SHOWN]

    def _dense_seconds(self, now_ns: int) -> tuple[CollectiveSecond, ...]:
        """One entry for every second observed, those without a collective too: the span of the
        tuple is the wall over which its sums were taken."""
        if not self._begin():
            return ()
        observed_ns = max(p.first_arrive_ns for p in self._progress)
        this_second = now_ns // NANOSECONDS
        first = max(observed_ns // NANOSECONDS, this_second - KEPT_SECONDS)
        empty = _Tally(len(self.ranks))
        found = []
        for second in range(first, this_second + 1):
            tally = self._seconds.get(second, empty)
            found.append(
                CollectiveSecond(
                    second=second,
                    count=tally.count,
                    wait_seconds=_seconds(tally.wait_ns),
                    charged_seconds=_seconds(tally.charged_ns),
                    last_count=tuple(tally.last),
                )
            )
        return tuple(found)

    def _open(self, now_ns: int) -> tuple[OpenCollective, ...]:
        """Collectives that some ranks are inside of, the longest first."""
        found = []
        begin = self._begin()
        unseen = self._unseen_parties()
        for sequence, slots in self._waiting.items():
            present = [e for e in slots if e is not None]
            inside = [e for e in present if not e.depart_ns and e.basis != _NONE]
            if not inside or sequence < begin:
                continue
            missing = [i for i, e in enumerate(slots) if e is None and i not in unseen]
            if any(self._progress[i].newest > sequence for i in missing):
                continue  # it was there and its record is lost or torn
            open_seconds = max(0, now_ns - min(e.arrive_ns for e in present)) / NANOSECONDS
            if not missing and open_seconds < ALL_IN_SECONDS:
                continue
            found.append(
                OpenCollective(
                    op=layout.OPS[present[0].op],
                    sequence=sequence,
                    open_seconds=open_seconds,
                    present_ranks=tuple(
                        r for r, e in zip(self.ranks, slots, strict=True) if e is not None
                    ),
                    missing_ranks=tuple(self.ranks[i] for i in missing),
                )
            )
        found.sort(key=lambda o: -o.open_seconds)
        return tuple(found[:MOST_OPEN_SHOWN])

    def _unseen_parties(self) -> set[int]:
        """Members without a page that nevertheless take part: others left a collective that could
        not have ended without them."""
        absent = {i for i, member in enumerate(self.members) if member is None}
        if not absent:
            return absent
        left = any(all(e is None or e.depart_ns for e in slots) for slots in self._waiting.values())
        return absent if left else set()

    def _unseen_reason(self) -> str:
        joined = sum(t.count for t in self._totals.values())
        if None in self.members:
            return reasons.MISSING_RANK
        if self.async_only and not joined:
            return reasons.ASYNC_ONLY
        return reasons.UNJOINED if self.unjoined > joined else ""


def _mismatch(slots: Sequence[Entry | None]) -> Mismatch:
    present = [e for e in slots if e is not None]
    return Mismatch(
        sequence=present[0].sequence,
        ops=tuple("" if e is None else layout.OPS[e.op] for e in slots),
        arrive_seconds=max(e.arrive_ns for e in present) / NANOSECONDS,
    )


def _seconds(values_ns: Sequence[int]) -> tuple[float, ...]:
    return tuple(value / NANOSECONDS for value in values_ns)


class EngineJoiner:
    """All groups of one engine, found in the facts of its workers' pages."""

    def __init__(self) -> None:
        self._joiners: dict[tuple[str, tuple[int, ...]], GroupJoiner] = {}

    def update(self, workers: Mapping[int, PageSample], now_ns: int) -> tuple[Group, ...]:
        """One tick. `workers` maps a torch rank to its page; groups name torch ranks."""
        named: dict[tuple[str, tuple[int, ...]], dict[int, tuple[PageSample, int]]] = {}
        for torch_rank, sample in workers.items():
            for seat in sample.seats:  # a later seat of the same group replaces an earlier one
                if torch_rank in seat.ranks:
                    named.setdefault((seat.name, seat.ranks), {})[torch_rank] = (sample, seat.ring)
        for key, joiner in list(self._joiners.items()):
            if key not in named and now_ns - joiner.last_named_ns > KEPT_SECONDS * NANOSECONDS:
                del self._joiners[key]
        groups = []
        for (name, torch_ranks), seats in sorted(named.items()):
            shown = tuple(_shown_rank(workers, rank) for rank in torch_ranks)
            joiner = self._joiners.setdefault((name, torch_ranks), GroupJoiner(name, shown))
            joiner.ranks, joiner.last_named_ns = shown, now_ns
            found = [seats.get(rank) for rank in torch_ranks]
            joiner.follow(
                tuple(
                    (at[0].process.incarnation, at[1]) if at is not None else None for at in found
                )
            )
            for member, at in enumerate(found):
                if at is not None:
                    joiner.take(member, at[0].entries.get(at[1], []))
            joiner.settle(now_ns)
            groups.append(joiner.group(now_ns))
        return tuple(groups)


def _shown_rank(workers: Mapping[int, PageSample], torch_rank: int) -> int:
    """The rank that the engine gives this worker, which the findings name."""
    sample = workers.get(torch_rank)
    rank = sample.process.rank if sample is not None else None
    return torch_rank if rank is None else rank
