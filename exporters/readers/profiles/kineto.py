"""torch.profiler's traces (Kineto, Chrome JSON): one file a rank, plain or gzip.

Calls of the CPU shorter than LONG_CALL_SECONDS are counted and dropped: they cover no gap worth
naming, and are most of a trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.json_events import EventReader
from exporters.readers.profiles.stream import Source

FORMAT: Final = "kineto"
LONG_CALL_SECONDS: Final = 100e-6
_LONG_CALL_US: Final = LONG_CALL_SECONDS * 1e6
_BATCH: Final = 16384  # events turned into columns at a time
_MAX_US: Final = 9e15  # int64 nanoseconds
_INT32: Final = 0x7FFF_FFFF  # thread ids of some systems do not fit

_Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The wanted fields of an event's `args`."""

    stream: _Number = None
    bytes: _Number = None
    grid: tuple[int, ...] | _Number = None
    block: tuple[int, ...] | _Number = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group: _Number = msgspec.field(default=None, name="Process Group Name")
    ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    size: _Number = msgspec.field(default=None, name="Group size")
    sequence: _Number = msgspec.field(default=None, name="Seq")
    in_elements: _Number = msgspec.field(default=None, name="In msg nelems")
    out_elements: _Number = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None


class Event(msgspec.Struct, gc=False):
    """The wanted fields of an event; `ts` and `dur` in microseconds."""

    cat: str | None = None
    name: _Number = None
    tid: _Number = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


_GPU: Final[dict[str | None, int]] = {
    "kernel": t.KERNEL,
    "gpu_memcpy": t.COPY_OTHER,
    "gpu_memset": t.FILL,
}
_OLD_GPU: Final[dict[str | None, int]] = {
    "Kernel": t.KERNEL,
    "Memcpy": t.COPY_OTHER,
    "Memset": t.FILL,
}
_RANGES: Final = ("user_annotation",)
_CALLS: Final = (
    "cpu_op",
    "Operator",
    "cuda_runtime",
    "cuda_driver",
    "hip_runtime",
    "Runtime",
    "python_function",
)
_KINDS: Final[dict[str | None, int]] = {
    **_GPU,
    **_OLD_GPU,
    **dict.fromkeys(_RANGES, t.RANGE),
    **dict.fromkeys(_CALLS, t.CALL),
}
_NO_ARGS: Final = Args()


class _Names:
    """Ids of names, and what each name says, so that no row asks twice."""

    def __init__(self) -> None:
        self.ids: dict[object, int] = {}
        self.spelled: list[str] = []
        self._ops: list[int] = []
        self._host_ops: list[int] = []
        self._copies: list[int] = []

    def of(self, events: Sequence[Event]) -> t.Int:
        """The id of each event's name. Shape (n,)."""
        known = self.ids.get
        found = [known(event.name) for event in events]
        if None in found:
            found = [
                self._id(event.name) if i is None else i
                for i, event in zip(found, events, strict=True)
            ]
        return np.array(found, dtype=np.int64)

    def _id(self, name: object) -> int:
        if (known := self.ids.get(name)) is not None:
            return known
        text = str(name)
        op, host_op = names.collective_of(text), names.host_collective_of(text)
        self.spelled.append(text.encode(errors="replace").decode())
        self._ops.append(names.OP_INDEX[op] if op else t.NOT_KNOWN)
        self._host_ops.append(names.OP_INDEX[host_op] if host_op else t.NOT_KNOWN)
        self._copies.append(_direction(text))
        return self.ids.setdefault(name, len(self.ids))

    def ops(self, ids: t.Int) -> t.Int:
        """The op of a kernel of each name, -1 where it is no collective."""
        return np.array(self._ops, dtype=np.int64)[ids]

    def host_ops(self, ids: t.Int) -> t.Int:
        """The op of a CPU range of each name, -1 where it is no blocking collective."""
        return np.array(self._host_ops, dtype=np.int64)[ids]

    def copies(self, ids: t.Int) -> t.Int:
        """The direction of a copy of each name, as a kind."""
        return np.array(self._copies, dtype=np.int64)[ids]


class _Rows:
    """Turns lists of events into Tables: columns at a time, but for the collectives."""

    def __init__(self) -> None:
        self.names = _Names()
        self.groups: dict[str, int] = {}
        self.group_names: list[t.GroupName] = []
        self.left_out: Counter[str] = Counter()
        self.events = 0
        self.has_host_collectives = False
        self._volume_of: dict[object, int] = {}
        self._pending: list[Event] = []
        self._tables: list[t.Table] = []

    def add(self, events: Sequence[Event]) -> None:
        """Keep the wanted ones of these events, as a Table once there are many."""
        self.events += len(events)
        kind_of = _KINDS.get
        self._pending += [
            event
            for event in events
            if (kind := kind_of(event.cat)) is not None
            and (kind != t.CALL or event.dur is None or not 0 <= event.dur < _LONG_CALL_US)
        ]
        if len(self._pending) >= _BATCH:
            self._flush()

    def table(self) -> t.Table:
        """Everything that was kept."""
        self._flush()
        return t.joined(self._tables)

    def _flush(self) -> None:
        wanted, self._pending = self._pending, []
        table = self._table(wanted)
        if table is not None:
            self._tables.append(table)

    def _table(self, wanted: list[Event]) -> t.Table | None:
        start_us = np.array([event.ts for event in wanted], dtype=np.float64)  # None is NaN
        lasts_us = np.array([event.dur for event in wanted], dtype=np.float64)
        usable = self._usable(start_us, lasts_us)
        if not usable.all():
            wanted = [wanted[i] for i in np.flatnonzero(usable)]
            start_us, lasts_us = start_us[usable], lasts_us[usable]
        if not wanted:
            return None
        start_ns = np.rint(start_us * 1e3).astype(np.int64)
        args = [event.args or _NO_ARGS for event in wanted]
        columns = {
            "kind": np.array([_KINDS[event.cat] for event in wanted], dtype=np.int64),
            "name": self.names.of(wanted),
            "stream": _narrow(_streams(wanted, args)),
            "start_ns": start_ns,
            "end_ns": start_ns + np.rint(lasts_us * 1e3).astype(np.int64),
            "bytes": _ints([a.bytes for a in args]),
            "blocks": self._volumes([a.grid for a in args]),
            "threads": _narrow(self._volumes([a.block for a in args])),
            **{
                name: np.full(len(wanted), t.NOT_KNOWN, dtype=np.int64)
                for name in ("op", "group", "sequence")
            },
        }
        self._collectives(columns, args)
        return t.table_of(columns)

    def _volumes(self, shapes: Sequence[object]) -> t.Int:
        """Products of launch shapes, of which there are few different ones. Shape (n,)."""
        known = self._volume_of
        for shape in set(shapes).difference(known):
            known[shape] = _volume(shape)
        return np.array([known[shape] for shape in shapes], dtype=np.int64)

    def _usable(
        self, start_us: npt.NDArray[np.float64], lasts_us: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        timeless = np.isnan(start_us) | np.isnan(lasts_us)
        negative = lasts_us < 0
        possible = (np.abs(start_us) < _MAX_US) & (lasts_us < _MAX_US)
        for what, bad in (
            ("without a time", timeless),
            ("with a negative duration", negative),
            ("with an impossible time", ~possible & ~timeless & ~negative),
        ):
            if count := int(bad.sum()):
                self.left_out[what] += count
        usable: npt.NDArray[np.bool_] = possible & ~negative
        return usable

    def _collectives(self, columns: dict[str, t.Int], args: Sequence[Args]) -> None:
        """Fill in op, group and sequence, and correct the kinds that a name decides."""
        kind, ids = columns["kind"], columns["name"]
        copies = kind == t.COPY_OTHER
        if copies.any():
            kind[copies] = self.names.copies(ids[copies])
        ranges = np.flatnonzero(kind == t.RANGE)
        host_op = self.names.host_ops(ids[ranges])
        blocking = ranges[host_op >= 0]
        if len(blocking):
            self.has_host_collectives = True
            kind[blocking], columns["op"][blocking] = t.HOST_COLLECTIVE, host_op[host_op >= 0]
        by_name = np.where(kind == t.KERNEL, self.names.ops(ids), t.NOT_KNOWN)
        stated = [i for i, a in enumerate(args) if a.collective is not None]
        for i in {*np.flatnonzero(by_name >= 0).tolist(), *stated}:
            mine, op = args[i], int(by_name[i])
            if kind[i] != t.KERNEL:
                continue
            if mine.collective and (op >= 0 or mine.group is not None):
                named = names.op_named(mine.collective)
                op = names.OP_INDEX[named] if named != names.UNKNOWN or op < 0 else op
            if op >= 0:
                kind[i], columns["op"][i] = t.COLLECTIVE, op
                columns["group"][i], columns["sequence"][i] = self._group(mine), _int(mine.sequence)
                columns["bytes"][i] = _message_bytes(mine)

    def _group(self, args: Args) -> int:
        if args.group is None and args.ranks is None:
            return -1
        # Groups of other ranks may have the same name; their ranks tell them apart.
        ranks = _ranks(args.ranks)
        key = f"{args.group}|{args.ranks}"
        index = self.groups.get(key)
        if index is None:
            index = self.groups[key] = len(self.group_names)
            size = max(_int(args.size), 0) or len(ranks)
            self.group_names.append(t.GroupName(str(args.group), size, ranks))
        return index


def read(path: Path) -> t.Part:
    """One trace file as a Part. Raises ProfileError."""
    rows = _Rows()
    with Source(path) as source:
        reader = EventReader(source, Event)
        for events in reader:
            rows.add(events)
    header = reader.header
    if reader.left_out:
        rows.left_out["that are no events"] += reader.left_out
    table = rows.table()
    base_ns = _int(header.get("baseTimeNanoseconds"))
    if base_ns > 0 and len(table):
        table.start_ns[:] += base_ns
        table.end_ns[:] += base_ns
    stated = header.get("distributedInfo")
    info = stated if isinstance(stated, dict) else {}
    rank = info.get("rank")
    if not rows.groups and rows.has_host_collectives:
        rows.group_names.append(_only_group(info))
        table.group[table.kind == t.HOST_COLLECTIVE] = 0
    host = header.get("host_name")
    return t.Part(
        path=str(path),
        format=FORMAT,
        schema=f"schemaVersion {header.get('schemaVersion', 'not stated')}",
        table=table,
        names=tuple(rows.names.spelled),
        groups=tuple(rows.group_names),
        rank=rank if isinstance(rank, int) and 0 <= rank < t.MAX_RANK else None,
        world_size=max(_int(info.get("world_size")), 0),
        clock=host if isinstance(host, str) else "",
        device=_device(header),
        events=rows.events,
        left_out=dict(rows.left_out),
    )


def _only_group(info: dict[str, Any]) -> t.GroupName:
    configs = info.get("pg_config")
    only = configs[0] if isinstance(configs, list) and len(configs) == 1 else {}
    ranks = only.get("ranks") if isinstance(only, dict) else None
    ranks = tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, list) else ()
    name = str(only.get("pg_desc", "")) if isinstance(only, dict) else ""
    return t.GroupName(name, len(ranks), ranks)


def _streams(events: Sequence[Event], args: Sequence[Args]) -> t.Int:
    return _ints(
        [event.tid if a.stream is None else a.stream for event, a in zip(events, args, strict=True)]
    )


def _ints(values: Sequence[_Number]) -> t.Int:
    """`_int` of each. Shape (n,)."""
    try:
        wide = np.array(values, dtype=np.float64)  # None is NaN
    except (ValueError, TypeError, OverflowError):
        return np.array([_int(value) for value in values], dtype=np.int64)
    fits = (wide >= 0) & (wide < t.MAX_NUMBER)
    return np.where(fits, wide, t.NOT_KNOWN).astype(np.int64)


def _narrow(wide: t.Int) -> t.Int:
    return np.where(wide < 0, t.NOT_KNOWN, wide & _INT32)


def _direction(name: str) -> int:
    if "DtoH" in name or "DeviceToHost" in name:
        return t.COPY_D2H
    return t.COPY_H2D if "HtoD" in name or "HostToDevice" in name else t.COPY_OTHER


def _message_bytes(args: Args) -> int:
    elements = max(_int(args.in_elements), _int(args.out_elements))
    width = names.DTYPE_BYTES.get((args.dtype or "").lower(), 0)
    return elements * width if elements >= 0 and width else t.NOT_KNOWN


def _ranks(text: str | list[int] | None) -> tuple[int, ...]:
    """`[0, 1, 2]` as numbers; () for a list that PyTorch has cut short (more than 30 ranks)."""
    if isinstance(text, list):
        return tuple(text)
    parts = (text or "").strip("[] ").split(",")
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        return ()


def _volume(shape: object) -> int:
    return _int(math.prod(shape)) if isinstance(shape, tuple) and shape else t.NOT_KNOWN


def _int(value: object) -> int:
    """A whole number that fits the table's columns; -1 for anything else."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return t.NOT_KNOWN
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < t.MAX_NUMBER else t.NOT_KNOWN


def _device(header: dict[str, Any]) -> t.Device:
    listed = header.get("deviceProperties")
    first = listed[0] if isinstance(listed, list) and listed else {}
    if not isinstance(first, dict):
        return t.Device()
    return t.Device(str(first.get("name", "")), max(_int(first.get("numSms")), 0))
