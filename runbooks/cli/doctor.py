"""`stallscope doctor`: which patches and hooks an engine here would have, or has, and why not."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from typing import Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError

SCHEMA: Final = 1
DEFAULT_SECONDS: Final = 14.0
_EXAMPLES: Final = """examples:
  stallscope doctor                    what an engine started here would have
  stallscope doctor --all              each hook and what each patch is for, too
  stallscope doctor --from $STALLSCOPE_DIR      what the running engines have
  STALLSCOPE_PATCHES=-executor stallscope doctor
  stallscope doctor --json | jq '.sections[] | select(.title == "patches")'

exit codes: 0 all is well, 1 a patch was refused or the client is the fallback,
3 something was unseen (LMCache is not here, or does not import), 64 usage
"""
_CODES: Final = {
    "ok": exit_codes.OK,
    "note": exit_codes.OK,
    "warning": exit_codes.WARNING,
    "unseen": exit_codes.UNSEEN,
}


class _Doctor:
    name = "doctor"
    help = "which patches and hooks are in the engine: applied, refused and why, off"
    group = "set up"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument(
            "--from",
            dest="source",
            metavar="PAGES_DIR",
            help="look at the engines that write their pages there, not at this environment",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=DEFAULT_SECONDS,
            metavar="S",
            help=f"seconds for importing LMCache's modules ({DEFAULT_SECONDS:.0f})",
        )
        parser.add_argument("--all", action="store_true", help="every row and its facts")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        if not (math.isfinite(args.timeout) and args.timeout > 0):
            raise UsageError(f"--timeout {args.timeout:g}: give seconds above 0")
        from runbooks import checkup, sources
        from runbooks.cli.commands import targets
        from runbooks.cli.doctor_text import doctor_text
        from runbooks.cli.terminal import emit, style

        if args.source is not None:
            if not args.source:
                raise UsageError("--from is empty; give the folder of the engine's pages")
            source = sources.recognise(args.source)
            if source.path is None:
                raise UsageError(f"--from: {sources.refusal(source)}")
            sections = checkup.live(source.path)
        else:
            sections = checkup.ask(targets(checkup.PROVIDERS), _say, args.timeout)
        level = checkup.exit_level(sections)
        if args.json:
            said = {"schema": SCHEMA, "level": level, "sections": [s.as_json() for s in sections]}
            emit(json.dumps(said, indent=2))
        else:
            emit(doctor_text(sections, style(), everything=args.all))
        return _CODES[level]


def _say(text: str) -> None:
    """Progress, beside what is printed."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"stallscope doctor: {text}", file=sys.stderr, flush=True)


COMMAND: Command = _Doctor()
