"""How we write to a terminal, a pipe or a file: width, colour, and a reader that went away."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import Final

PIPED_COLUMNS: Final = 80
_MIN_COLUMNS: Final = 40
_MAX_COLUMNS: Final = 100  # longer lines of prose are hard to read

_STYLES: Final = {"bold": "1", "dim": "2", "red": "1;31", "yellow": "1;33", "green": "32"}


def terminal_width() -> int:
    """Columns to write in: the terminal's, bounded, and always 80 when piped."""
    if not sys.stdout.isatty():
        return PIPED_COLUMNS
    columns = shutil.get_terminal_size((PIPED_COLUMNS, 24)).columns
    return max(_MIN_COLUMNS, min(columns, _MAX_COLUMNS))


def wants_colour() -> bool:
    """Colour only on a terminal that can show it; NO_COLOR (no-color.org) turns it off."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


@dataclass(frozen=True, slots=True)
class Style:
    """Width in columns and whether to paint; every renderer takes one and touches no terminal."""

    width: int
    colour: bool

    def paint(self, name: str, text: str) -> str:
        """`text` in the named style, or as it is where colour is off."""
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if self.colour and text else text

    def wrap(self, text: str, indent: str, first: str | None = None) -> list[str]:
        """Lines of at most `width` columns; long words (paths, commands) are left whole."""
        return textwrap.wrap(
            text,
            width=self.width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def style() -> Style:
    """The style that fits standard output."""
    return Style(width=terminal_width(), colour=wants_colour())


def emit(text: str) -> bool:
    """Write one text and flush; False once the reader has gone (`| head`), never an exception."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        return False
    return True


def silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush stays quiet."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
