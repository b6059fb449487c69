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

from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.json_events import EventReader
from exporters.readers.profiles.stream import Source

FORMAT: Final = "kineto"
LONG_CALL_SECONDS: Final = 100e-6
_LONG_CALL_US: Final = LONG_CALL_SECONDS * 1e6
_MAX_US: Final = 9e15  # int64 nanoseconds
_INT32: Final = 0x7FFF_FFFF  # thread ids of some systems do not fit

_Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The wanted fields of an event's `args`."""

    stream: _Number = None
    bytes: _Number = None
    grid: list[int] | _Number = None
    block: list[int] | _Number = None
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


class _Rows:
    """Collects rows of events as plain lists, and turns them into a Table piece by piece."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.group_names: list[t.GroupName] = []
        self.left_out: Counter[str] = Counter()
        self.events = 0
        self.host_collectives = 0
        self.gpu_rows = 0

    def table(self, events: Sequence[Event]) -> t.Table | None:
        """The wanted rows of these events; None where there are none."""
        rows: list[tuple[float, ...]] = []
        ids = self.names
        kinds = _KINDS
        self.events += len(events)
        for event in events:
            kind = kinds.get(event.cat)
            if kind is None:
                continue
            start, duration = event.ts, event.dur
            if start is None or duration is None:
                self.left_out["without a time"] += 1
                continue
            if kind == t.CALL and 0 <= duration < _LONG_CALL_US:
                continue
            if duration < 0:
                self.left_out["with a negative duration"] += 1
                continue
            if not (abs(start) < _MAX_US and duration < _MAX_US):
                self.left_out["with an impossible time"] += 1
                continue
            name = str(event.name)
            name_id = ids.setdefault(name, len(ids))
            if kind in (t.RANGE, t.CALL):
                op = t.NOT_KNOWN
                if kind == t.RANGE and (host_op := names.host_collective_of(name)):
                    kind, op = t.HOST_COLLECTIVE, names.OP_INDEX[host_op]
                    self.host_collectives += 1
                rows.append(
                    (kind, op, name_id, _int(event.tid), start, duration, -1, -1, -1, -1, -1)
                )
                continue
            self.gpu_rows += 1
            rows.append(self._gpu_row(kind, name, name_id, start, duration, event))
        return _table(rows) if rows else None

    def _gpu_row(
        self, kind: int, name: str, name_id: int, start: float, duration: float, event: Event
    ) -> tuple[float, ...]:
        args = event.args or _NO_ARGS
        stream = _int(args.stream if args.stream is not None else event.tid)
        size = _int(args.bytes)
        op = group = sequence = -1
        if kind == t.COPY_OTHER:
            kind = _direction(name)
        elif kind == t.KERNEL:
            found = names.collective_of(name)
            if args.collective and (found or args.group is not None):
                stated = names.op_named(args.collective)
                found = stated if stated != names.UNKNOWN else found or stated
            if found:
                kind, op = t.COLLECTIVE, names.OP_INDEX[found]
                group, sequence = self._group(args), _int(args.sequence)
                size = _message_bytes(args)
        return (
            kind,
            op,
            name_id,
            stream,
            start,
            duration,
            group,
            sequence,
            size,
            _volume(args.grid),
            _volume(args.block),
        )

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
    tables = []
    with Source(path) as source:
        reader = EventReader(source, Event)
        for events in reader:
            table = rows.table(events)
            if table is not None:
                tables.append(table)
    header = reader.header
    if reader.left_out:
        rows.left_out["that are no events"] += reader.left_out
    table = t.joined(tables)
    base_ns = _int(header.get("baseTimeNanoseconds"))
    if base_ns > 0 and len(table):
        table.start_ns[:] += base_ns
        table.end_ns[:] += base_ns
    stated = header.get("distributedInfo")
    info = stated if isinstance(stated, dict) else {}
    rank = info.get("rank")
    if not rows.groups and rows.host_collectives:
        rows.group_names.append(_only_group(info))
        table.group[table.kind == t.HOST_COLLECTIVE] = 0
    host = header.get("host_name")
    return t.Part(
        path=str(path),
        format=FORMAT,
        schema=f"schemaVersion {header.get('schemaVersion', 'not stated')}",
        table=table,
        names=tuple(name.encode(errors="replace").decode() for name in rows.names),
        groups=tuple(rows.group_names),
        rank=rank if isinstance(rank, int) and rank >= 0 else None,
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


def _table(rows: list[tuple[float, ...]]) -> t.Table:
    kind, op, name, stream, start, duration, group, sequence, size, blocks, threads = zip(
        *rows, strict=True
    )
    start_ns = np.rint(np.asarray(start) * 1e3).astype(np.int64)
    return t.table_of(
        {
            "kind": kind,
            "op": op,
            "name": name,
            "stream": _narrow(stream),
            "start_ns": start_ns,
            "end_ns": start_ns + np.rint(np.asarray(duration) * 1e3).astype(np.int64),
            "group": group,
            "sequence": sequence,
            "bytes": size,
            "blocks": blocks,
            "threads": _narrow(threads),
        }
    )


def _narrow(values: Sequence[float]) -> t.Int:
    wide = np.asarray(values, dtype=np.int64)
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
    return _int(math.prod(shape)) if isinstance(shape, list) and shape else t.NOT_KNOWN


def _int(value: object) -> int:
    """A whole number that fits the table's columns; -1 for anything else."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return t.NOT_KNOWN
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else t.NOT_KNOWN


def _device(header: dict[str, Any]) -> t.Device:
    listed = header.get("deviceProperties")
    first = listed[0] if isinstance(listed, list) and listed else {}
    if not isinstance(first, dict):
        return t.Device()
    return t.Device(str(first.get("name", "")), max(_int(first.get("numSms")), 0))
