"""Shows a run while it goes: redrawn in place on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab.history import place
from lab.run import Begun, Progress
from lab.settings import Settings

_PLAIN_EVERY_SECONDS: Final = 5.0


class ProgressView:
    """Writes to standard error, so that standard output is the report's alone."""

    def __init__(self, settings: Settings, title: str) -> None:
        self.settings = settings
        self.title = title
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._next_line_seconds = 0.0
        self._has_said_where = False
        self._told: set[str] = set()

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live = Live(
                Text(f"{self.title}: starting"),
                console=self._console,
                auto_refresh=False,  # no thread of its own: children are started from this one
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(self._picture(progress), refresh=True)
            return
        for text in begun_lines(progress.begun, self.settings):
            if text not in self._told:
                self._told.add(text)
                self._line(f"{self.title}: {text}")
        if progress.phase == "starting":
            self._line(f"{self.title}: starting {self.settings.ranks} ranks")
        elif not self._has_said_where:
            self._has_said_where = True
            self._line(f"{self.title}: {watch_command(progress)}")
        elif progress.elapsed_seconds >= self._next_line_seconds:
            self._next_line_seconds = progress.elapsed_seconds + _PLAIN_EVERY_SECONDS
            self._line(f"{self.title}: {_summary(progress, self.settings)}")

    def _line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _picture(self, progress: Progress) -> Group:
        rows: list[Any] = [Text(f"{self.title}: {_summary(progress, self.settings)}", style="bold")]
        if progress.evaluation is not None:
            rows.append(rank_table(progress.evaluation))
            rows += [
                Text(f"{finding.severity}  {finding.id}: {finding.summary}", style="red")
                for finding in progress.evaluation.findings
            ]
            rows += [Text(text) for text in begun_lines(progress.begun, self.settings)]
            rows.append(Text(watch_command(progress), style="dim"))
        return Group(*rows)


def begun_lines(begun: Begun, settings: Settings) -> list[str]:
    """What has happened to the engine, a line each."""
    lines = [
        f"the stock client lost a completion by itself on rank {rank} after {at_seconds:.1f} s"
        for rank, at_seconds in begun.losses
    ]
    if begun.incident_seconds is not None:
        lines.append(f"{settings.incident} began after {begun.incident_seconds:.1f} s")
    return lines


def watch_command(progress: Progress) -> str:
    """How to look at this run from another terminal."""
    shards = " ".join(f"--valkey {url}" for url in progress.shard_urls)
    return f"stallscope diagnose --from {progress.pages_folder} {shards}".rstrip()


def rank_table(evaluation: Any) -> Table:
    """Wait, charge and bytes of each rank so far, as its page shows them."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "waited s", "charged s", "stored MB", "loaded MB"):
        table.add_column(name, justify="right")
    for engine in evaluation.snapshot.engines:
        waits: dict[int, list[float]] = {}
        for group in engine.groups:
            for total in group.totals:
                for index, rank in enumerate(group.ranks):
                    row = waits.setdefault(rank, [0.0, 0.0])
                    row[0] += total.wait_seconds[index]
                    row[1] += total.charged_seconds[index]
        for rank, process in sorted(engine.workers().items()):
            wait, charged = waits.get(rank, (0.0, 0.0))
            loaded = process.counters.get("load_l1_bytes", 0) + process.counters.get(
                "load_l2_bytes", 0
            )
            table.add_row(
                str(rank),
                f"{wait:.2f}",
                f"{charged:.2f}",
                f"{process.counters.get('store_bytes', 0) / 1e6:.0f}",
                f"{loaded / 1e6:.0f}",
            )
    return table


def _summary(progress: Progress, settings: Settings) -> str:
    counts = progress.counts
    text = (
        f"{min(progress.elapsed_seconds, settings.seconds):.0f} of {settings.seconds:g} s, "
        f"{counts.get('finished', 0)} requests done, {counts.get('waiting', 0)} waiting"
    )
    if timeouts := counts.get("lookup_timeouts", 0):
        text += f", {timeouts} lookup timeouts"
    found = progress.evaluation.findings if progress.evaluation is not None else ()
    names = ", ".join(f"{f.id} {place(f.rank, f.shard)}" for f in found)
    snapshot = progress.evaluation.snapshot if progress.evaluation is not None else None
    is_blind = snapshot is not None and (snapshot.unseen or not snapshot.engines)
    return f"{text}; {names or ('not all is seen' if is_blind else 'nothing found')}"
