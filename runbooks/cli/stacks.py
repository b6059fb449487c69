"""`stallscope stacks`: what every thread of the engine is inside of, equal stacks told once."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.diagnose import FOLDER_VARIABLE
from runbooks.cli.parser import UsageError

if TYPE_CHECKING:
    from exporters.readers.stacks import StackSample

_EXAMPLES: Final = """examples:
  stallscope stacks                        every engine process that runs here
  stallscope stacks --from /dev/shm/stallscope
  stallscope stacks --json | jq '.groups[] | select(.odd)'
  kubectl debug -it $POD --image=$STALLSCOPE_IMAGE --target=$CONTAINER \\
    --profile=general -- stallscope stacks

Read-only: nothing is sent to the engine, and without --native it is not paused.

exit codes: 0 every engine process was read, 3 one or all could not be,
64 usage, 70 internal, 130 interrupted
"""


class _Stacks:
    name = "stacks"
    help = "what each thread of the engine is inside of, the odd rank marked (py-spy)"
    group = "now"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument(
            "--from",
            dest="source",
            metavar="PAGES_DIR",
            help=f"the processes that write these pages (default: those of ${FOLDER_VARIABLE}, "
            "and all that run here under an engine's name)",
        )
        parser.add_argument(
            "--pid",
            action="append",
            default=[],
            type=_pid,
            metavar="PID",
            help="this process, whatever it is; once for each",
        )
        parser.add_argument(
            "--native",
            action="store_true",
            help="calls of C and C++ too; pauses each process for up to 0.1 s",
        )
        parser.add_argument(
            "--timeout",
            type=_seconds,
            metavar="SECONDS",
            help="for all of them together (default: 5)",
        )
        parser.add_argument("--all", action="store_true", help="long stacks whole")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        if args.pid and args.source is not None:
            raise UsageError("--pid and --from both say which processes; leave one out")
        folder = None if args.pid else _folder(args.source)

        from runbooks.cli.stacks_text import stacks_json, stacks_text
        from runbooks.cli.terminal import emit, style
        from runbooks.stack_groups import collapse

        sample = _look(args, folder)
        groups = collapse(sample.stacks)
        if args.json:
            emit(json.dumps(stacks_json(sample, groups)))
        else:
            emit(stacks_text(sample, groups, style(), args.all))
        return exit_codes.UNSEEN if sample.unseen else exit_codes.OK


def _look(args: argparse.Namespace, folder: Path | None) -> StackSample:
    import time

    from exporters.readers import stacks
    from exporters.readers.pages import PageFolder
    from exporters.snapshot import Unseen

    targets: tuple[stacks.Target, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    is_asked_for = args.source is not None
    if args.pid:
        targets = stacks.of_pids(args.pid)
    elif folder is not None:
        pages = PageFolder(folder)
        try:
            sample = pages.read(time.monotonic_ns())
        finally:
            pages.close()
        targets, unseen = stacks.of_pages((page.process for page in sample.pages), folder)
        if is_asked_for:
            unseen = (*sample.unseen, *unseen)
    if not is_asked_for and not args.pid:
        targets = (*targets, *stacks.of_names(targets))
    if not targets and unseen:
        return stacks.StackSample((), unseen)
    looked = stacks.read(targets, args.timeout or stacks.DEADLINE_SECONDS, args.native)
    return stacks.StackSample(looked.stacks, (*unseen, *looked.unseen), looked.took_seconds)


def _folder(given: str | None) -> Path | None:
    """The folder of pages asked for, or the environment's; None for none. Raises UsageError."""
    from runbooks.sources import recognise, refusal

    text = given if given is not None else os.environ.get(FOLDER_VARIABLE, "")
    if not text:
        if given is not None:
            raise UsageError("--from: the folder of pages has no name")
        return None
    source = recognise(text)
    if fault := refusal(source):
        raise UsageError(f"--from: {fault}")
    return source.path


def _pid(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 0 < int(text) < 1 << 22):
        raise argparse.ArgumentTypeError(f"{text!r} is no process id; give a number such as 4711")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds from 0.1 to 600")
    return seconds


COMMAND: Command = _Stacks()
