"""An argparse parser that answers like the rest of the tool: exit 64, one line, a suggestion."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable
from typing import NoReturn

from runbooks.cli import exit_codes
from runbooks.cli.terminal import terminal_width

_BAD_CHOICE = re.compile(r"invalid choice: '?(?P<given>[^']*?)'? \(choose from (?P<choices>.*)\)")
_BAD_OPTION = re.compile(r"unrecognized arguments: (?P<given>--[^ =]+)")


class UsageError(Exception):
    """The command line cannot be used as written; the text says what, where and the mend."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help at the terminal's width (80 when piped), with examples left as they are written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_width(), max_help_position=26)


class Parser(argparse.ArgumentParser):
    """One command's parser; sub-parsers made from it are of this class too."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with exit 64 (argparse's own 2 would read as "critical")."""
        print(f"{self.prog}: {self._explain(message)}", file=sys.stderr)
        raise SystemExit(exit_codes.USAGE)

    def _explain(self, message: str) -> str:
        hint = f"see {self.prog} --help"
        if bad := _BAD_CHOICE.search(message):
            choices = re.findall(r"[^', ]+", bad["choices"])
            return f"{message}; {nearest(bad['given'], choices) or hint}"
        if bad := _BAD_OPTION.search(message):
            options = [option for action in self._actions for option in action.option_strings]
            return f"there is no {bad['given']}; {nearest(bad['given'], options) or hint}"
        return f"{message}; {hint}"


def nearest(given: str, known: Iterable[str]) -> str:
    """`did you mean X?` for the closest of `known`, or "" where nothing is close."""
    close = difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""
