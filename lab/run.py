"""One lab run from start to end: servers, engine processes, the evaluator's ticks, the results."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any, Final

from lab import incidents, streams, valkey
from lab.history import Moment, moment
from lab.processes import Household, StopSignals
from lab.settings import CHUNK_TOKENS, Settings, SettingsError
from lab.stamps import read_arrived_ns

_START_SECONDS: Final = 90.0
_END_SECONDS: Final = 20.0
_TICK_SECONDS: Final = 1.0
_OVERDUE_SECONDS: Final = 60.0


class RunError(RuntimeError):
    """The run could not be carried out: what went wrong and the last lines of the log."""


@dataclass(slots=True)
class Begun:
    """What the engine's processes told of faults, in seconds of the run.

    `incident_seconds` is when the incident's fault was done, None before. `losses` are the
    completions that the stock client lost by itself: (rank, when).
    """

    incident_seconds: float | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What a run left: the processes' own results and the evaluations taken while it ran.

    `named_after_seconds` is, by (finding, rank), when it was first named after the run's start;
    `decided` in how many of the ticks each rule could be judged.
    """

    settings: Settings
    shard_urls: list[str]
    pages_folder: str
    scheduler: dict[str, Any] = field(default_factory=dict)
    arrived_ns: list[list[int]] = field(default_factory=list)
    evaluation: Any = None
    named_after_seconds: dict[tuple[str, int | None], float] = field(default_factory=dict)
    begun: Begun = field(default_factory=Begun)
    moments: list[Moment] = field(default_factory=list)
    decided: Counter[str] = field(default_factory=Counter)
    wall_seconds: float = 0.0
    server: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment of a run for whoever shows it."""

    phase: str
    elapsed_seconds: float
    counts: dict[str, int]
    evaluation: Any
    pages_folder: str
    shard_urls: list[str]
    begun: Begun


Watcher = Callable[[Progress], None]


def execute(
    settings: Settings, stop: StopSignals, watch: Watcher, at_end: Watcher | None = None
) -> Outcome:
    """Run once. Raises SettingsError, RunError or Interrupted; nothing is left behind.

    `watch` sees every tick; `at_end` is called once when the time is up and all processes live.
    """
    settings.check()
    requests = streams.load(settings)
    longest = max(request.length_tokens for request in requests)
    settings = _fit(settings, longest)
    binary = valkey.find_server(settings.valkey_server)
    environment = _environment(settings)
    policy = "normal" if settings.plain_scheduling else "batch"
    with Household(policy) as household:
        environment |= {"TMPDIR": str(household.folder)}
        try:
            run = _Run(settings, household, stop, watch, at_end)
            return run.execute(binary, environment, pages=2 * _chunks(longest))
        finally:
            if settings.keep:
                _keep(household.folder, Path(settings.keep))


class _Run:
    """The state of one run in the lab's parent."""

    def __init__(
        self,
        settings: Settings,
        household: Household,
        stop: StopSignals,
        watch: Watcher,
        at_end: Watcher | None,
    ) -> None:
        self.settings = settings
        self.household = household
        self.stop = stop
        self.watch = watch
        self.at_end = at_end
        self.pages_folder = Path(settings.pages) if settings.pages else household.folder / "pages"
        self.servers: list[valkey.Server] = []
        self.host: subprocess.Popen[Any] | None = None
        self.ready: set[str] = set()
        self.exited: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.is_over = False
        self.started_seconds = time.monotonic()
        self.evaluation: Any = None
        self.named: dict[tuple[str, int | None], float] = {}
        self.begun = Begun()
        self.moments: list[Moment] = []
        self.decided: Counter[str] = Counter()
        self._incident = incidents.get(settings.incident)
        self._has_struck = self._incident is None
        self._selector = selectors.DefaultSelector()
        self._unread = b""

    def execute(self, binary: str, environment: dict[str, str], pages: int) -> Outcome:
        try:
            self.pages_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"--pages {self.pages_folder}: {error.strerror}") from None
        if not os.access(self.pages_folder, os.W_OK):
            raise SettingsError(f"--pages {self.pages_folder}: may not be written")
        self._show("starting")
        if self.settings.pages:
            self.household.watch_pages(self.pages_folder)
        count = self.settings.shards
        by_rank = self.settings.has_shard_a_rank
        hosts = valkey.rank_hosts(count) if by_rank else [valkey.LOCAL] * count
        fixed_port = valkey.free_port(hosts) if by_rank else 0
        for index, host in enumerate(hosts):
            self.stop.check()
            try:
                self.servers.append(
                    valkey.start(
                        self.household,
                        self.stop,
                        binary,
                        index,
                        self.settings.shard_bytes,
                        host,
                        fixed_port,
                    )
                )
            except valkey.ValkeyError as error:
                raise RunError(str(error)) from None
        self._start_host(environment, pages)
        try:
            self._wait_until_ready()
            evaluator = self._evaluator()
            self._run(evaluator)
            wall_seconds = time.monotonic() - self.started_seconds
            if self.at_end is not None:
                self.at_end(self._progress("over"))
            self._finish()
        finally:
            self._selector.close()
        return self._outcome(wall_seconds, binary)

    def _start_host(self, environment: dict[str, str], pages: int) -> None:
        folder = self.household.folder
        plan = {
            "settings": asdict(self.settings),
            "shard_urls": self._engine_urls(),
            "engine_id": f"lab-{uuid.uuid4().hex[:8]}",
            "pages": pages,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "prometheus").mkdir()
        self.host = self.household.start(
            [sys.executable, "-m", "lab.host", str(folder)],
            log=folder / "host.log",
            environment=environment
            | {
                "STALLSCOPE_DIR": str(self.pages_folder),
                "STALLSCOPE_STEP_FUNCTION": "lab.worker:Worker.execute_step",
                "PROMETHEUS_MULTIPROC_DIR": str(folder / "prometheus"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.host.stdout is not None
        os.set_blocking(self.host.stdout.fileno(), False)
        self._selector.register(self.host.stdout, selectors.EVENT_READ)

    def _engine_urls(self) -> list[str]:
        """The remote_url of rank r is the one at r mod their number."""
        if self.settings.has_shard_a_rank:
            return [f"resp://{valkey.RANK_HOST}:{self.servers[0].port}"]
        return [server.resp_url for server in self.servers]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while len(self.ready) < self.settings.ranks + 1:
            self._read_events(0.1)
            if self.exited or time.monotonic() > deadline:
                raise RunError(self._why("the engine did not start"))

    def _run(self, evaluator: Any) -> None:
        self.started_seconds = time.monotonic()
        self._say("go")
        next_tick = self.started_seconds + _TICK_SECONDS
        overdue = self.started_seconds + self.settings.seconds + _OVERDUE_SECONDS
        while not self.is_over:
            self._read_events(max(0.0, min(0.1, next_tick - time.monotonic())))
            if self.exited:
                raise RunError(self._why("an engine process ended"))
            if time.monotonic() > overdue:
                raise RunError(self._why("the run does not end"))
            self._strike()
            if time.monotonic() >= next_tick:
                next_tick += _TICK_SECONDS
                self._tick(evaluator)
        self._tick(evaluator)

    def _strike(self) -> None:
        """Let the incident do what it does from outside of the engine, once."""
        elapsed_seconds = time.monotonic() - self.started_seconds
        if self._has_struck or self._incident is None:
            return
        if elapsed_seconds >= self._incident.after_seconds(self.settings):
            self._has_struck = True
            pids = [server.process.pid for server in self.servers]
            if self._incident.strike(self.settings, pids):
                self.begun.incident_seconds = elapsed_seconds

    def _tick(self, evaluator: Any) -> None:
        self.evaluation = evaluator.tick()
        now = time.monotonic() - self.started_seconds
        for finding in self.evaluation.findings:
            self.named.setdefault((finding.id, finding.rank), now)
        self.decided.update(
            v.rule for v in self.evaluation.verdicts if v.findings or not v.abstained
        )
        urls = [server.url for server in self.servers]
        self.moments.append(moment(self.evaluation, now, self.settings.ranks, urls))
        self._show("running")

    def _finish(self) -> None:
        self._say("finish")
        deadline = time.monotonic() + _END_SECONDS
        while len(self.exited) < self.settings.ranks + 1:
            self._read_events(0.1)
            if "scheduler" in self.exited and self._has_stalled():
                return  # its ranks cannot be asked to leave; they are ended with the rest
            if time.monotonic() > deadline:
                raise RunError(self._why("the engine does not end"))
        if failed := [role for role, status in self.exited.items() if status]:
            raise RunError(self._why(f"{failed[0]} failed"))

    def _has_stalled(self) -> bool:
        return bool(self._scheduler_result()["stalled_steps"])

    def _scheduler_result(self) -> dict[str, Any]:
        path = self.household.folder / "scheduler.json"
        if not path.exists():
            raise RunError(self._why("the scheduler left no result"))
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def _evaluator(self) -> Any:
        from detectors import ALL_RULES
        from exporters.evaluator import Evaluator

        return Evaluator(
            pages_dir=self.pages_folder,
            valkey_urls=[server.url for server in self.servers],
            rules=ALL_RULES,
        )

    def _say(self, line: str) -> None:
        assert self.host is not None and self.host.stdin is not None
        try:
            self.host.stdin.write(line.encode() + b"\n")
            self.host.stdin.flush()
        except OSError:
            raise RunError(self._why("the engine is gone")) from None

    def _read_events(self, timeout_seconds: float) -> None:
        self.stop.check()
        assert self.host is not None and self.host.stdout is not None
        if not self._selector.select(timeout_seconds):
            return
        data = self.host.stdout.read()
        if data == b"":
            if len(self.exited) == self.settings.ranks + 1:
                return
            raise RunError(self._why("the engine ended"))
        *lines, self._unread = (self._unread + (data or b"")).split(b"\n")
        for line in lines:
            self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        match event.pop("event"):
            case "pid":
                self.household.watch(event["pid"])
            case "ready":
                self.ready.add(event["role"])
            case "progress":
                self.counts = event
            case "over":
                self.is_over = True
            case "begun":
                self.begun.incident_seconds = event["at_seconds"] - self.started_seconds
            case "lost":
                if not event["is_forced"]:
                    at_seconds = event["at_seconds"] - self.started_seconds
                    self.begun.losses.append((event["rank"], at_seconds))
            case "exit":
                self.exited[event["role"]] = event["status"]

    def _show(self, phase: str) -> None:
        self.watch(self._progress(phase))

    def _progress(self, phase: str) -> Progress:
        return Progress(
            phase,
            time.monotonic() - self.started_seconds,
            self.counts,
            self.evaluation,
            str(self.pages_folder),
            [server.url for server in self.servers],
            self.begun,
        )

    def _why(self, what: str) -> str:
        """`what`, with the last line of the log that is most likely to explain it."""
        roles = [role for role, status in self.exited.items() if status] or ["host"]
        log = self.household.folder / f"{roles[0]}.log"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        last = text.splitlines()[-1] if text else "its log is empty"
        return f"{what} ({roles[0]}: {last})"

    def _outcome(self, wall_seconds: float, binary: str) -> Outcome:
        folder = self.household.folder
        return Outcome(
            settings=self.settings,
            shard_urls=[server.url for server in self.servers],
            pages_folder=str(self.pages_folder),
            scheduler=self._scheduler_result(),
            arrived_ns=[read_arrived_ns(folder, rank) for rank in range(self.settings.ranks)],
            evaluation=self.evaluation,
            named_after_seconds=self.named,
            begun=self.begun,
            moments=self.moments,
            decided=self.decided,
            wall_seconds=wall_seconds,
            server=binary,
        )


def _chunks(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS)


def _fit(settings: Settings, longest_tokens: int) -> Settings:
    """L1 must take the longest prompt with what is still on its way to L2, or LMCache drops it."""
    owners = settings.ranks if settings.engine == "sharded" else 1
    needed = -(-3 * _chunks(longest_tokens) // (2 * owners)) * settings.chunk_bytes
    return replace(settings, l1_bytes=max(settings.l1_bytes, needed))


def _environment(settings: Settings) -> dict[str, str]:
    """The engine processes' environment. Raises SettingsError where LMCache is not installed."""
    here = Path(__file__).resolve().parent.parent
    path = [str(here)]
    for name in ("torch", "lmcache"):
        if util.find_spec(name) is None:
            raise SettingsError(
                f"the lab needs {name}, which is not here: pip install 'stallscope[lab]'"
            )
    if (folder := _lmcache_folder(settings.lmcache)) is not None:
        path.insert(0, str(folder))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LMCACHE_")}
    return environment | {
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "PYTHONHASHSEED": "0",  # LMCache's builtin hash must agree between processes
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "LMCACHE_LOG_LEVEL": os.environ.get("LMCACHE_LOG_LEVEL", "WARNING"),
        "LMCACHE_TRACK_USAGE": "false",
        "STALLSCOPE_PATCHES": "none" if settings.engine == "stock" else "all",
    }


def _lmcache_folder(version: str) -> Path | None:
    """Where the asked-for LMCache lies if it is not the installed one."""
    from importlib import metadata

    try:
        if metadata.version("lmcache") == version:
            return None
    except metadata.PackageNotFoundError:
        pass
    folder = Path(sys.prefix) / f"lmcache-{version}"
    if (folder / "lmcache").is_dir():
        return folder
    raise SettingsError(
        f"--lmcache {version} is not here: "
        f"pip install --no-deps --target {folder} lmcache=={version}"
    )


def _keep(folder: Path, target: Path) -> None:
    """Copy logs and results for the user; sockets and pages are of no use afterwards."""
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*"):
        if path.suffix in {".log", ".json"} and path.is_file():
            shutil.copy(path, target / path.name)
