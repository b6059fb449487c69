"""The live view of `diagnose --watch`: one look a second, until Ctrl-C or a closed pipe."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Final

from runbooks.cli import exit_codes
from runbooks.cli.findings_text import clock, report_text
from runbooks.cli.ranks_text import ranks_text
from runbooks.cli.terminal import Style, emit, style, wants_colour
from runbooks.report import Report

INTERVAL_SECONDS: Final = 1.0

Look = Callable[[], Report]


def watch(look: Look, *, as_json: bool, interval_seconds: float = INTERVAL_SECONDS) -> int:
    """Look again and again; 130 after Ctrl-C or SIGTERM, the last exit code after a closed pipe."""
    with _sigterm_as_interrupt():
        try:
            if not as_json and sys.stdout.isatty():
                return _on_terminal(look, interval_seconds)
            return _on_pipe(look, as_json, interval_seconds)
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED


def _on_pipe(look: Look, as_json: bool, interval_seconds: float) -> int:
    """A line of JSON or a block of text each second."""
    for report in _reports(look, interval_seconds):
        text = json.dumps(report.as_json()) if as_json else _screen(report, style()) + "\n"
        if not emit(text):
            return report.exit_code
    raise AssertionError("the reports never end")


def _on_terminal(look: Look, interval_seconds: float) -> int:
    """The whole screen, redrawn in place; the last report stays below once the screen is back."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    report: Report | None = None
    console = Console(no_color=not wants_colour())
    try:
        with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False) as live:
            for report in _reports(look, interval_seconds):
                live.update(Text.from_ansi(_fitted(report, console.size.height)), refresh=True)
    finally:
        if report is not None:
            emit(report_text(report, style()))
    raise AssertionError("the reports never end")


def _reports(look: Look, interval_seconds: float) -> Iterator[Report]:
    due = time.monotonic()
    while True:
        yield look()
        # A look that took too long skips its missed turns rather than running after them.
        due = max(due + interval_seconds, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _fitted(report: Report, screen_rows: int) -> str:
    """The screen with the evidence where that fits, else without."""
    fit = style()
    is_high = _rows(_screen(report, replace(fit, colour=False)), fit.width) > screen_rows
    return _screen(report, fit, brief=is_high)


def _screen(report: Report, look: Style, *, brief: bool = False) -> str:
    title = f"stallscope  {clock(report.snapshot.unix_seconds)}"
    head = look.paint("bold", title)
    if report.asked.pages_dir is not None:
        head += f"  {_end_of(str(report.asked.pages_dir), look.width - len(title) - 2)}"
    ranks = ranks_text(report.snapshot, look)
    parts = (head, report_text(report, look, brief=brief), ranks)
    return "\n\n".join(part for part in parts if part)


def _end_of(path: str, columns: int) -> str:
    """A path in so many columns: its end tells more than its beginning."""
    return path if len(path) <= columns else f"...{path[-max(columns - 3, 1) :]}"


def _rows(plain_text: str, columns: int) -> int:
    """Rows that a text takes where long lines are folded."""
    return sum(max(1, -(-len(line) // columns)) for line in plain_text.splitlines())


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, so that the terminal is given back either way."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
