"""PyTorch Flight Recorder dumps, pickle or JSON: the last collectives of a rank, and their state.

Only what PyTorch writes is unpickled (plain containers, text and numbers): a pickle that names any
class or function is refused before that runs. Times in a dump are the host's view of asynchronous
work, so that wait comes from `duration_ms` alone (recorded with TORCH_NCCL_ENABLE_TIMING=1).
"""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any, Final

from exporters import reasons
from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.errors import ProfileError
from exporters.readers.profiles.stream import Source
from exporters.snapshot import Unseen

FORMAT: Final = "flight-recorder"
_MAX_BYTES: Final = 512 << 20  # a ring of some thousand entries with stacks is a few MB
_MAX_MS: Final = 9e9


# How libtorch spells a list of one type; each is given its elements, and a list is what it makes.
_TYPED_LISTS: Final = frozenset(
    ("torch.jit._pickle", f"build_{kind}list") for kind in ("int", "double", "bool")
)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[list[Any]]:
        if (module, name) in _TYPED_LISTS:
            return list
        raise pickle.UnpicklingError(f"names {module}.{name}")


def read(path: Path) -> t.Part:
    """One dump as a Part. Raises ProfileError."""
    dump = _load(path)
    entries = dump.get("entries")
    if not isinstance(entries, list) or not (dump.get("version") or dump.get("pg_config")):
        raise ProfileError(
            str(path),
            reasons.NOT_A_PROFILE,
            "is no Flight Recorder dump: it has no entries and version",
            "dump with TORCH_NCCL_TRACE_BUFFER_SIZE set",
        )
    groups_by_name = _groups(dump.get("pg_config"))
    rows = _Rows(path, groups_by_name)
    for entry in entries:
        rows.add(entry)
    rank = dump.get("rank")
    return t.Part(
        path=str(path),
        format=FORMAT,
        schema=f"version {dump.get('version', 'not stated')}",
        table=rows.table(),
        names=tuple(rows.names),
        groups=tuple(rows.groups),
        rank=rank if isinstance(rank, int) and 0 <= rank < t.MAX_RANK else None,
        world_size=max((g.size for g in groups_by_name.values()), default=0),
        events=len(entries),
        left_out=dict(rows.left_out),
        unseen=tuple(rows.unseen()),
        duration_only=True,
    )


def _load(path: Path) -> dict[str, Any]:
    raw = b""
    with Source(path) as source:
        while piece := source.read():
            raw += piece
            if len(raw) > _MAX_BYTES:
                raise ProfileError(
                    str(path), reasons.UNREADABLE, "is larger than any Flight Recorder dump"
                )
    try:
        dump = json.loads(raw) if raw.lstrip()[:1] == b"{" else _Plain(io.BytesIO(raw)).load()
    except pickle.UnpicklingError as error:
        if "truncated" in str(error):
            raise ProfileError(
                str(path), reasons.TRUNCATED, "ends in the middle", "copy it again"
            ) from error
        raise ProfileError(
            str(path),
            reasons.NOT_A_PROFILE,
            f"is a pickle that no Flight Recorder writes ({error}), and was not run",
        ) from error
    except (ValueError, EOFError, RecursionError, MemoryError) as error:
        raise ProfileError(
            str(path), reasons.TRUNCATED, "ends in the middle", "copy it again"
        ) from error
    except Exception as error:  # a damaged pickle can raise about anything
        raise ProfileError(
            str(path), reasons.UNREADABLE, f"is a damaged pickle ({type(error).__name__})"
        ) from error
    return dump if isinstance(dump, dict) else {}


def _groups(config: object) -> dict[str, t.GroupName]:
    found = {}
    for name, about in config.items() if isinstance(config, dict) else ():
        ranks = about.get("ranks") if isinstance(about, dict) else None
        if isinstance(ranks, str):
            try:
                ranks = json.loads(ranks)
            except ValueError:
                ranks = None
        if isinstance(ranks, (list, tuple, set)) and all(isinstance(r, int) for r in ranks):
            found[str(name)] = t.GroupName(str(name), len(ranks), tuple(sorted(ranks)))
    return found


class _Rows:
    def __init__(self, path: Path, groups: dict[str, t.GroupName]) -> None:
        self.path = path
        self.by_name = groups
        self.names: dict[str, int] = {}
        self.groups: dict[t.GroupName, int] = {}
        self.left_out: Counter[str] = Counter()
        self.untimed = 0
        self.open: list[str] = []
        self.rows: list[tuple[int, ...]] = []

    def add(self, entry: object) -> None:
        if not isinstance(entry, dict):
            self.left_out["that are no entries"] += 1
            return
        about = entry.get("process_group")
        group_name = str(about[0]) if isinstance(about, (list, tuple)) and about else ""
        group = self.by_name.get(group_name, t.GroupName(group_name))
        spelled = str(entry.get("profiling_name", ""))
        is_p2p = bool(entry.get("is_p2p"))
        sequence = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
        if not isinstance(sequence, int) or not 0 <= sequence < t.MAX_NUMBER:
            self.left_out["without a sequence number"] += 1
            return
        # A retired entry is done, whatever its last state: not every backend updates that.
        if entry.get("state") in ("started", "scheduled") and not entry.get("retired"):
            self.open.append(f"{spelled} number {sequence} of group {group_name}")
            return
        duration_ms = entry.get("duration_ms")
        if not isinstance(duration_ms, (int, float)):
            self.untimed += 1
            return
        if not 0 <= duration_ms < _MAX_MS:
            self.left_out["with a negative or impossible duration"] += 1
            return
        done = entry.get("time_discovered_completed_ns") or entry.get("time_created_ns") or 0
        end_ns = done if isinstance(done, int) and 0 <= done < 1 << 62 else 0
        self.rows.append(
            (
                names.OP_INDEX[names.op_named(spelled.partition(":")[2] or spelled)],
                self.names.setdefault(spelled, len(self.names)),
                end_ns - int(duration_ms * 1e6),
                end_ns,
                self.groups.setdefault(group, len(self.groups)),
                sequence,
            )
        )

    def table(self) -> t.Table:
        op, name, start, end, group, sequence = (
            zip(*self.rows, strict=True) if self.rows else [()] * 6
        )
        return t.table_of(
            {
                "kind": [t.COLLECTIVE] * len(self.rows),
                "op": op,
                "name": name,
                "start_ns": start,
                "end_ns": end,
                "group": group,
                "sequence": sequence,
            }
        )

    def unseen(self) -> list[Unseen]:
        found = []
        if self.untimed:
            detail = f"{self.path}: {self.untimed} collectives have no duration"
            mend = "set TORCH_NCCL_ENABLE_TIMING=1 to have them timed"
            found.append(Unseen(str(self.path), reasons.ASYNC_ONLY, detail, mend))
        if self.open:
            more = f" and {len(self.open) - 1} more" if len(self.open) > 1 else ""
            detail = f"{self.path}: not finished when dumped: {self.open[0]}{more}"
            mend = "a rank whose dump lacks it has not entered it"
            found.append(Unseen(str(self.path), reasons.OUTSTANDING, detail, mend))
        return found
