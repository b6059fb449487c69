"""The typed picture of one moment: what every reader returns and every detector takes.

A Snapshot is plain immutable data. Readers build it (pages, Valkey, bundles, recordings),
the evaluator and the detectors only read it, so that a rule gives the same answer on live
pages, in the exporter and on a recording. Times are seconds on the host's CLOCK_MONOTONIC
unless the name says `unix`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Liveness = Literal["alive", "frozen", "dead"]
# A writer that holds its lock but has not beaten (1 Hz) for this long is frozen.
FROZEN_AFTER_SECONDS: Final = 3.0
# Pictures kept for the rules that hold several against each other, at one a second.
KEPT_PICTURES: Final = 15
Basis = Literal["host", "cuda_event", "profiler"]
Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that was asked for and could not be read.

    `source` names it (a page file, a shard URL without credentials, a signal), `reason` is one of
    the enumerated reasons of `exporters.reasons`, `detail` is the one line for a person and
    `mend` what to do about it.
    """

    source: str
    reason: str
    detail: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveSecond:
    """Joined symmetric collectives of one process group whose last arrival fell in one second.

    `wait_seconds[i]`, `charged_seconds[i]` and `last_count[i]` are indexed like the group's
    `ranks`. Wait is d - min d (design, Definitions). `charged_seconds` is the others' wait summed
    onto the last to arrive, in rank-seconds.
    """

    second: int
    count: int
    wait_seconds: tuple[float, ...]
    charged_seconds: tuple[float, ...]
    last_count: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenCollective:
    """A collective that some ranks entered and others have not: who waits for whom."""

    op: str
    sequence: int
    open_seconds: float
    present_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place in a group's order at which its ranks were in different operations: `ops[i]` of the
    group's rank i, "" where its entry is not there."""

    sequence: int
    ops: tuple[str, ...]
    arrive_seconds: float


@dataclass(frozen=True, slots=True)
class GroupTotal:
    """Accumulated since the reader began, per (op, basis) of one group."""

    op: str
    basis: Basis
    count: int
    wait_seconds: tuple[float, ...]
    charged_seconds: tuple[float, ...]
    last_count: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of one engine: its recent seconds, totals and what is open now.

    `mismatches` are the last few, oldest first."""

    name: str
    ranks: tuple[int, ...]
    seconds: tuple[CollectiveSecond, ...]
    totals: tuple[GroupTotal, ...]
    open: tuple[OpenCollective, ...] = ()
    unjoined: int = 0
    unseen_reason: str = ""
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One finished store, load or lookup from a page's operation ring.

    `expected_chunks` is this rank's share of the chunks under c mod W; `chunks` and `bytes` what
    this rank really moved; `tier` is "l1", "l2" or "" where it does not apply. A lookup moves
    nothing: its `bytes` are `page_layout.lookup_number` of its id, equal on all ranks.
    """

    kind: Literal["store", "load", "lookup"]
    start_seconds: float
    end_seconds: float
    tokens: int
    chunks: int
    bytes: int
    expected_chunks: int
    tier: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """One operation that was submitted and has not completed."""

    id: int
    kind: str
    age_seconds: float
    timeout_seconds: float
    key_count: int
    first_key: str
    connection_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """One engine process as its page shows it.

    `counters` are the page's cumulative counters summed over lanes (names: page_layout.COUNTERS);
    `marks` its timestamps in seconds, absent where never set (names: page_layout.MARKS);
    `gauges` its amounts that go up and down (names: page_layout.GAUGES);
    `info` the facts of the header (configured timeouts, shard URL template, patches, hooks).
    `shard` is the URL of the one among the snapshot's shards that this process uses, "" for none.
    """

    page: str
    pid: int
    engine_id: str
    roles: tuple[str, ...]
    rank: int | None
    world_size: int
    incarnation: int
    liveness: Liveness
    heartbeat_age_seconds: float
    started_seconds: float
    counters: Mapping[str, int]
    marks: Mapping[str, float]
    info: Mapping[str, object]
    pending: tuple[Pending, ...] = ()
    operations: tuple[Operation, ...] = ()
    torn_records: int = 0
    shard: str = ""
    gauges: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixLimit:
    """How often one rank alone cut the prefix of a lookup, and how many chunks that the others
    still hold were lost by it; accumulated since the reader began."""

    rank: int
    limited_lookups: int
    lost_chunks: int


@dataclass(frozen=True, slots=True)
class ModelPoint:
    """One engine's totals at one moment, for the rates between two: prompts that came, prompts
    that were done, and time in steps of its busiest worker."""

    at_seconds: float
    admitted: int
    done: int
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What the cost model needs of one engine (`exporters.model`), as far as it is seen.

    `points` are oldest first, the last one is now. `token_bytes` is s; 0.0 where nothing was moved
    yet. `cold_tokens` and `cold_seconds` are prompts computed while no load ran, and their steps,
    since the reader began; `cold_rates` the last such stretches, tokens/s. `unseen` is why there is
    no rho, "" where there may be.
    """

    points: tuple[ModelPoint, ...] = ()
    token_bytes: float = 0.0
    cold_tokens: int = 0
    cold_seconds: float = 0.0
    cold_rates: tuple[float, ...] = ()
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """All processes of one engine (one pod) and the groups joined over its ranks."""

    engine_id: str
    world_size: int
    processes: tuple[Process, ...]
    groups: tuple[Group, ...] = ()
    prefix_limits: tuple[PrefixLimit, ...] = ()
    model: EngineModel = EngineModel()

    def workers(self) -> dict[int, Process]:
        """The worker pages by rank; a rank without a page is missing from the mapping."""
        return {p.rank: p for p in self.processes if "worker" in p.roles and p.rank is not None}


@dataclass(frozen=True, slots=True)
class ShardClient:
    """One connection as its server sees it (CLIENT LIST). `address` is "host:port" of the far end,
    `idle_seconds` whole seconds since its last command, `commands` None where the server does not
    count them (redis 7.0)."""

    id: int
    address: str
    idle_seconds: int
    query_bytes: int
    argument_bytes: int
    output_bytes: int
    output_replies: int
    commands: int | None
    last_command: str

    @property
    def is_owed(self) -> bool:
        """Whether a command is half read, or a reply not yet handed to the network."""
        return bool(
            self.query_bytes or self.argument_bytes or self.output_bytes or self.output_replies
        )


@dataclass(frozen=True, slots=True)
class ShardQuestion:
    """What a rule wants to know of one shard, beyond INFO: how these connections stand there
    ("host:port" of the engine's ends), and whether these keys exist."""

    url: str
    connections: tuple[str, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeySample:
    """A shard's keys by the rank in their names ("other": no chunk's), from one whole scan.

    It took `took_seconds` and ended at `read_seconds`: what came or went meanwhile may be missing.
    """

    keys: Mapping[str, int]
    bytes: Mapping[str, int]
    took_seconds: float
    read_seconds: float


@dataclass(frozen=True, slots=True)
class Shard:
    """One Valkey server as asked over its own protocol: reachable or not, INFO.

    `clients` and `keys` (key -> is there) are answers to the questions of the tick before; None
    and empty where nothing was asked, or the server refused. `read_seconds` is when INFO came, on
    our CLOCK_MONOTONIC; `io_threads` the configured number, main thread included, None where the
    server does not say. `log_entries` counts the entries of its command log by kind; `denied` names
    the signals that our user may not see. INFO was asked for `took_seconds` before it came.
    """

    url: str
    up: bool
    reason: str = ""
    info: Mapping[str, object] = field(default_factory=dict)
    clients: tuple[ShardClient, ...] | None = None
    keys: Mapping[str, bool] = field(default_factory=dict)
    read_seconds: float = 0.0
    io_threads: int | None = None
    log_entries: Mapping[str, int] = field(default_factory=dict)
    key_sample: KeySample | None = None
    denied: tuple[str, ...] = ()
    took_seconds: float = 0.0

    def number(self, name: str) -> int:
        """A figure of INFO; 0 where it is not there."""
        value = self.info.get(name)
        return value if isinstance(value, int) else 0


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack: `file` as far as its package (lmcache/v1/cache_engine.py)."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread and its calls, innermost first. `active`: it was on a CPU, or not known to wait;
    `cut_frames` calls in the middle were left out."""

    name: str
    os_thread_id: int
    frames: tuple[Frame, ...]
    active: bool = False
    holds_gil: bool = False
    cut_frames: int = 0


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """All threads of one engine process at one moment.

    `pid` is the one seen from here; `label`, `rank`, `engine_id` and `page` say whose it is (of a
    process found without a page, `page` is "" and `engine_id` "pid N" of its parent). `state` is
    the kernel's letter (R, S, D, T, ...).
    `torn`: it ran on while it was read, and the picture does not hold together after all tries.
    """

    pid: int
    label: str
    rank: int | None
    engine_id: str
    page: str
    state: str
    threads: tuple[ThreadStack, ...]
    torn: bool = False
    read_seconds: float = 0.0
    took_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LogCount:
    """How often one kind of known line (`exporters.log_lines`) was logged by one process.

    `source` is the log, or the pod that its lines name (kubectl logs --prefix).
    `process` is its name in the log ("Worker_PCP1"), "" where lines do not say; `pid` and the times
    are None likewise.
    """

    kind: str
    count: int
    source: str
    process: str = ""
    pid: int | None = None
    first_unix_seconds: float | None = None
    last_unix_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything read at one tick. `now_seconds` is CLOCK_MONOTONIC, `unix_seconds` the wall.

    `earlier` holds the last few pictures before this one, oldest first, without collectives and
    finished operations, which reach back by themselves. `stacks` and `logs` are there where they
    were asked for.
    """

    now_seconds: float
    unix_seconds: float
    engines: tuple[Engine, ...] = ()
    shards: tuple[Shard, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    earlier: tuple[Snapshot, ...] = ()
    stacks: tuple[ProcessStack, ...] = ()
    logs: tuple[LogCount, ...] = ()

    def shard(self, url: str) -> Shard | None:
        """The shard of that URL, if it was asked."""
        return next((shard for shard in self.shards if shard.url == url), None)

    def process(self, same: Process) -> Process | None:
        """The same process (one incarnation) in this picture."""
        return next(
            (
                p
                for engine in self.engines
                for p in engine.processes
                if (p.engine_id, p.page, p.incarnation)
                == (same.engine_id, same.page, same.incarnation)
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured figure, the limit it is held against, and how it is written for a person."""

    name: str
    value: float
    limit: float | None
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A named fault: where it is, since when, and the figures that say so.

    `since_seconds` is the age of the fault (seconds before now), `confidence` in [0, 1]. `cause`
    tells apart what has one name and several causes; "" where the name says it all.
    """

    id: str
    severity: Severity
    summary: str
    rank: int | None = None
    shard: str | None = None
    engine_id: str = ""
    since_seconds: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    confidence: float = 1.0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule's answer: its findings, or why it could not decide: `abstained` is the line for a
    person, `reason` its name among `exporters.reasons`. `again`: something is suspicious, and
    another look about a second later may decide it."""

    rule: str
    findings: tuple[Finding, ...] = ()
    abstained: str = ""
    reason: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One tick of the evaluator: the picture, the findings worst first, every rule's verdict."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
