"""Imports torch and LMCache once, then forks a process for each rank that a test asks for.

Reads one JSON line a pod from its standard input and prints the pids; each rank serves its socket.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    """Until the standard input ends; then no rank is left."""
    warnings.simplefilter("ignore")
    import torch

    import patched_engine

    torch.set_num_threads(1)
    patched_engine.install()
    import lmcache.v1.cache_engine
    import lmcache.v1.lookup_client.factory  # noqa: F401

    from tests.patched_engine.sharding import rank

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pids: list[int] = []
    print("ready", flush=True)
    for line in sys.stdin:
        born = [_fork(rank.serve, json.loads(line), number) for number in _ranks(line)]
        pids += born
        print(json.dumps(born), flush=True)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _ranks(line: str) -> list[int]:
    ranks: list[int] = json.loads(line)["ranks"]
    return ranks


def _fork(serve: Any, spec: dict[str, Any], number: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(Path(spec["folder"]) / f"rank-{number}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve(spec, number)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
