"""What `diagnose` adds to a picture on request, before it is judged: stacks and logs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from exporters.readers.log_engines import with_logs
from exporters.readers.logs import STDIN, LogError, LogFile
from exporters.readers.stacks import StackSample, of_pages, read
from exporters.snapshot import Snapshot


class StackLook:
    """The stacks of the processes that write a folder's pages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        processes = [p for engine in snapshot.engines for p in engine.processes]
        targets, unseen = of_pages(processes, self._folder)
        sample = read(targets) if targets else StackSample((), ())
        return dataclasses.replace(
            snapshot,
            stacks=sample.stacks,
            unseen=(*snapshot.unseen, *unseen, *sample.unseen),
        )


class LogLook:
    """The known lines of logs, read on from picture to picture; LogError for what is no log."""

    def __init__(self, paths: Sequence[str], follow: bool = False) -> None:
        self._logs = [LogFile(path, follow) for path in dict.fromkeys(paths)]
        if STDIN in paths and sys.stdin is not None and sys.stdin.isatty():
            raise LogError(
                "standard input is a terminal; pipe the log into it (kubectl logs ... |)"
            )

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        samples = [log.read(getattr(sys.stdin, "buffer", None)) for log in self._logs]
        seen = with_logs(snapshot, [count for sample in samples for count in sample.counts])
        unseen = [item for sample in samples for item in sample.unseen]
        return dataclasses.replace(seen, unseen=(*snapshot.unseen, *unseen))
