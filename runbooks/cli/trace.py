"""`stallscope trace`: reads a profile as one reads its timeline, and says who waited for whom."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError

# What a folder given as FILE stands for.
SUFFIXES: Final = (".sqlite", ".json", ".json.gz", ".jsonl", ".jsonl.gz", ".log", ".pkl", ".pickle")
_EXAMPLES: Final = """examples:
  stallscope trace report.sqlite                   nsys: all ranks of a node
  stallscope trace rank*.json.gz                   torch.profiler: a file a rank
  stallscope trace a.json b.json --rank 0 --rank 1
  stallscope trace TRACES --html report.html --json
  stallscope trace --compare BEFORE AFTER          two files, or two folders
  stallscope trace --capture http://localhost:8000 --seconds 5

reads nsys exports (nsys export --type sqlite), torch.profiler JSON, NCCL
Inspector JSON and PyTorch Flight Recorder dumps, told by their content

exit codes: 0 nothing found and all that was asked for was seen, 1 warning,
2 critical, 3 nothing found but something was unseen, 64 usage, 70 internal,
130 interrupted
"""


class _Trace:
    name = "trace"
    help = "which rank was late in a profile, what it was doing, what the GPUs did"
    group = "after"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument("files", nargs="*", metavar="FILE", help="profiles, or their folder")
        parser.add_argument(
            "--rank",
            action="append",
            default=[],
            type=int,
            metavar="N",
            help="the rank of a FILE that does not say it; once for each, in order",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object")
        parser.add_argument("--html", metavar="FILE", help="write a page: timeline and bars")
        parser.add_argument("--prom", metavar="FILE", help="write metrics for a textfile collector")
        parser.add_argument(
            "--compare",
            nargs=2,
            metavar=("BEFORE", "AFTER"),
            help="two profiles beside each other; each a file or a folder",
        )
        parser.add_argument(
            "--capture",
            metavar="URL",
            help="start and stop the profiler of the vLLM at URL around a window",
        )
        parser.add_argument(
            "--seconds",
            type=float,
            default=5.0,
            metavar="S",
            help="length of the captured window (default: 5)",
        )

    def run(self, args: argparse.Namespace) -> int:
        _check(args)
        if args.capture:
            from runbooks.capture import capture

            return capture(args.capture, args.seconds, as_json=args.json)

        # Nothing here multiplies matrices, and a process of one thread can be forked.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from exporters.readers.profiles.errors import ProfileError

        try:
            return _compare(args) if args.compare else _report(args)
        except ProfileError as error:
            raise UsageError(str(error)) from error


def _check(args: argparse.Namespace) -> None:
    modes = [bool(args.files), bool(args.compare), bool(args.capture)]
    if sum(modes) != 1:
        raise UsageError(
            "nothing to read; give FILE..., --compare BEFORE AFTER or --capture URL"
            if not any(modes)
            else "give one of FILE..., --compare and --capture, not several"
        )
    if args.rank and len(args.rank) != len(args.files):
        raise UsageError(
            f"{len(args.rank)} --rank for {len(args.files)} files; give one for each FILE"
        )
    if any(not 0 <= rank < 1 << 20 for rank in args.rank) or len(set(args.rank)) != len(args.rank):
        raise UsageError("--rank wants a different number from 0 on for each FILE")
    if args.capture and not 0 < args.seconds <= 600:
        raise UsageError(f"--seconds {args.seconds:g}: a window is between 0 and 600 seconds")
    for option in ("html", "prom"):
        if getattr(args, option) and not args.files:
            raise UsageError(f"--{option} goes with FILE...")


def expand(given: Sequence[str]) -> list[Path]:
    """The files that are meant: a folder stands for the profiles in it. Raises UsageError."""
    found: list[Path] = []
    for text in given:
        path = Path(text)
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.name.lower().endswith(SUFFIXES))
        # Flight Recorder dumps have no suffix: a prefix and the rank.
        inside = inside or sorted(p for p in path.iterdir() if p.is_file())
        if not inside:
            raise UsageError(f"{text} holds no file; give the profiles")
        found += inside
    repeated = {p for p in found if found.count(p) > 1}
    if repeated:
        raise UsageError(f"{min(repeated)} is given twice; give each file once")
    return found


def _report(args: argparse.Namespace) -> int:
    from runbooks.cli.terminal import emit, style
    from runbooks.cli.trace_text import trace_text
    from runbooks.trace_report import make_trace_report

    report = make_trace_report(expand(args.files), args.rank)
    if args.html and report.answered:
        from runbooks.trace_html import page

        _write(args.html, page(report))
    if args.prom:  # without answers too: what cannot be told must vanish, not go stale
        from runbooks.trace_prom import exposition

        _write(args.prom, exposition(report))
    emit(json.dumps(report.as_json()) if args.json else trace_text(report, style()))
    return report.exit_code


def _compare(args: argparse.Namespace) -> int:
    from runbooks.cli.terminal import emit, style
    from runbooks.trace_compare import compare, compare_text
    from runbooks.trace_report import make_trace_report

    before, after = (make_trace_report(expand([path])) for path in args.compare)
    result = compare(before, after)
    emit(json.dumps(result.as_json()) if args.json else compare_text(result, style()))
    return after.exit_code or (exit_codes.UNSEEN if before.unseen else exit_codes.OK)


def _write(name: str, text: str) -> None:
    """Whole or not at all: a textfile collector must never read half of it. Raises UsageError."""
    path = Path(name)
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror}") from error


COMMAND: Command = _Trace()
