"""The process the engine processes are forked from: it imports torch and LMCache once for all.

Started as `python -m lab.host RUN_FOLDER` with the hash seed and the chosen LMCache in its
environment. Standard output carries events (one JSON line each) from every process; standard
input is the scheduler's: its first line starts the run, its second ends it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lab import leash, messages, streams
from lab.settings import QUIET_SWITCH_SECONDS, Settings

_EVENTS: list[int] = []


def report(event: str, facts: dict[str, Any]) -> None:
    """One line to the lab's parent; short enough to be written whole."""
    os.write(_EVENTS[0], json.dumps({"event": event, **facts}).encode() + b"\n")


def main(folder: Path) -> int:
    # The event pipe moves away from standard output, on which LMCache or torch may print.
    _EVENTS.append(os.dup(1))
    os.dup2(2, 1)
    os.chdir(folder)  # socket paths are relative, as a Unix socket's path may not be long
    plan = json.loads((folder / "plan.json").read_text())
    settings = Settings.from_json(json.dumps(plan["settings"]))
    _import_once()
    channels = [messages.pair() for _ in range(settings.ranks)]
    children: dict[int, str] = {}
    roles = [*(f"rank{rank}" for rank in range(settings.ranks)), "scheduler"]
    for number, role in enumerate(roles):
        if pid := os.fork():
            children[pid] = role
            report("pid", {"role": role, "pid": pid})
            continue
        for index, (scheduler_end, worker_end) in enumerate(channels):
            if role != "scheduler":
                scheduler_end.close()
            if index != number:
                worker_end.close()
        ends = [pair[0] for pair in channels] if role == "scheduler" else [channels[number][1]]
        _become(role, folder, functools.partial(_run, role, number, settings, plan, folder, ends))
    for scheduler_end, worker_end in channels:
        scheduler_end.close()
        worker_end.close()
    while children:
        pid, status = os.wait()
        if role := children.pop(pid, ""):
            report("exit", {"role": role, "status": os.waitstatus_to_exitcode(status)})
    return 0


def _import_once() -> None:
    """Everything a child needs. No thread may be running when the children are forked."""
    import lmcache.v1.storage_backend.connector.redis_connector  # noqa: F401
    import torch

    from lab import engine, scheduler, worker  # noqa: F401

    torch.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        print(f"lab: {threads} threads before the fork", file=sys.stderr)


def _become(role: str, folder: Path, run: Callable[[], None]) -> NoReturn:
    """In a fresh child: its own log, its leash, its hooks, then `run`, and never return."""
    code = 1
    try:
        leash.die_with(_PARENT)
        log = os.open(folder / f"{role}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # LMCache's threads would keep an ordinary exit waiting


def _run(
    role: str,
    rank: int,
    settings: Settings,
    plan: dict[str, Any],
    folder: Path,
    ends: list[messages.Channel],
) -> None:
    from patched_engine import install

    install()
    if not settings.plain_scheduling:
        sys.setswitchinterval(QUIET_SWITCH_SECONDS)
    from lab.engine import keep_sockets_in, poison_freed_buffers

    keep_sockets_in(Path())
    urls, engine_id, pages = plan["shard_urls"], plan["engine_id"], plan["pages"]
    if role == "scheduler":
        _schedule(settings, engine_id, urls[0], pages, folder, ends)
    else:
        poison_freed_buffers()
        _work(settings, rank, engine_id, urls[rank % len(urls)], pages, folder, ends[0])


def _work(
    settings: Settings,
    rank: int,
    engine_id: str,
    url: str,
    pages: int,
    folder: Path,
    channel: messages.Channel,
) -> None:
    import torch.distributed as dist

    from lab import incidents
    from lab.engine import build_engine
    from lab.worker import Worker

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=settings.ranks
    )
    engine, _server = build_engine(settings, rank, engine_id, url)
    port = int(url.rpartition(":")[2])
    worker = Worker(settings, rank, engine, pages, folder, port, report)
    if incident := incidents.get(settings.incident):
        incident.install(worker)
    worker.gather()  # the connections between ranks are made now, not in the first step
    report("ready", {"role": f"rank{rank}"})
    worker.serve(channel)


def _schedule(
    settings: Settings,
    engine_id: str,
    url: str,
    pages: int,
    folder: Path,
    ends: list[messages.Channel],
) -> None:
    from lab.engine import build_lookup_client
    from lab.scheduler import Scheduler

    client = build_lookup_client(settings, engine_id, url)
    scheduler = Scheduler(settings, streams.load(settings), client, ends, pages, report)
    report("ready", {"role": "scheduler"})
    if not os.read(0, 64):
        return  # the lab went away before it began
    scheduler.run(control=0)
    (folder / "scheduler.json").write_text(json.dumps(scheduler.result()))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _PARENT = os.getpid()
    sys.exit(main(Path(sys.argv[1])))
