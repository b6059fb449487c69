"""NCCL Inspector's JSON lines: for each collective its sequence number and its duration.

Schema: NCCL's ext-profiler/inspector, output format v4.0 (NCCL 2.28 on). Times of events are there
in verbose mode only, and come from each host's own clock, so that wait is told by duration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from exporters import reasons
from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.errors import ProfileError
from exporters.readers.profiles.stream import Source

FORMAT: Final = "nccl-inspector"
_LINE_BYTES: Final = 16 << 20
_MAX_US: Final = 9e12
# Where the Inspector has no time of the kernel, it gives the CPU's, which is no wait.
_GPU_TIMING: Final = "kernel_gpu"


class Header(msgspec.Struct):
    id: str | int = ""
    rank: int = -1
    n_ranks: int = 0


class Metadata(msgspec.Struct):
    version: str = msgspec.field(default="", name="inspector_output_format_version")
    dump_us: float = msgspec.field(default=0.0, name="dump_timestamp_us")
    hostname: str = ""


class Collective(msgspec.Struct):
    op: str = msgspec.field(default="", name="coll")
    sequence: int = msgspec.field(default=-1, name="coll_sn")
    bytes: int = msgspec.field(default=-1, name="coll_msg_size_bytes")
    microseconds: float = msgspec.field(default=-1.0, name="coll_exec_time_us")
    timing: str = msgspec.field(default="", name="coll_timing_source")


class Line(msgspec.Struct):
    header: Header | None = None
    metadata: Metadata | None = None
    coll_perf: Collective | None = None


def read(path: Path) -> t.Part:
    """One file of JSON lines (or one JSON array) as a Part. Raises ProfileError."""
    decoder = msgspec.json.Decoder(Line)
    left_out: Counter[str] = Counter()
    ids: dict[str, int] = {}
    groups: dict[t.GroupName, int] = {}
    columns: dict[str, list[int]] = {
        name: [] for name in ("rank", "op", "name", "start_ns", "end_ns", "group", "sequence")
    }
    sizes: list[int] = []
    version, events, on_cpu = "", 0, 0
    for raw in _lines(path):
        events += 1
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            left_out["that do not parse"] += 1
            continue
        header, perf = line.header, line.coll_perf
        if header is None or perf is None:
            left_out["that are no collectives"] += 1
            continue
        if not (
            0 <= perf.microseconds < _MAX_US
            and 0 <= perf.sequence < t.MAX_NUMBER
            and 0 <= header.rank < t.MAX_RANK
        ):
            left_out["with an impossible time or number"] += 1
            continue
        if perf.timing and perf.timing != _GPU_TIMING:
            on_cpu += 1
            left_out["timed on the CPU, which is no wait"] += 1
            continue
        metadata = line.metadata or Metadata()
        version = version or metadata.version
        group = t.GroupName(str(header.id), min(max(header.n_ranks, 0), t.MAX_RANK))
        end_ns = int(metadata.dump_us * 1e3) if 0 <= metadata.dump_us < _MAX_US * 1e3 else 0
        columns["rank"].append(header.rank)
        columns["op"].append(names.OP_INDEX[names.op_named(perf.op)])
        columns["name"].append(ids.setdefault(f"nccl {perf.op}", len(ids)))
        columns["start_ns"].append(end_ns - int(perf.microseconds * 1e3))
        columns["end_ns"].append(end_ns)
        columns["group"].append(groups.setdefault(group, len(groups)))
        columns["sequence"].append(perf.sequence)
        sizes.append(perf.bytes if 0 <= perf.bytes < t.MAX_NUMBER else t.NOT_KNOWN)
    if not sizes and not on_cpu:
        raise ProfileError(
            str(path),
            reasons.TRUNCATED if left_out else reasons.NOT_A_PROFILE,
            "holds no collective that NCCL Inspector would have written",
            "set NCCL_INSPECTOR_ENABLE=1 and let the engine run longer",
        )
    table = t.table_of({**columns, "bytes": sizes, "kind": [t.COLLECTIVE] * len(sizes)})
    return t.Part(
        path=str(path),
        format=FORMAT,
        schema=version or "not stated",
        table=table,
        names=tuple(ids),
        groups=tuple(groups),
        # A communicator's size is not the world's, but the largest is what there is.
        world_size=max((g.size for g in groups), default=0),
        events=events,
        left_out=dict(left_out),
        duration_only=True,
    )


def _lines(path: Path) -> Iterator[bytes]:
    rest = b""
    with Source(path) as source:
        while piece := source.read():
            rest += piece
            *lines, rest = rest.split(b"\n")
            if len(rest) > _LINE_BYTES:
                raise ProfileError(str(path), reasons.UNREADABLE, "has a line of more than 16 MB")
            yield from (bare for line in lines if (bare := line.strip(b" \t\r,[]")))
    if rest := rest.strip(b" \t\r,[]"):
        yield rest
