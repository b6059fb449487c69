"""`stallscope diagnose`: what is wrong now, from outside the engine: pages and Valkey URLs only."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError

if TYPE_CHECKING:
    from exporters.snapshot import Snapshot
    from runbooks.sources import Source

FOLDER_VARIABLE: Final = "STALLSCOPE_DIR"
_EXAMPLES: Final = """examples:
  stallscope diagnose                      the pages in $STALLSCOPE_DIR
  stallscope diagnose --from /dev/shm/stallscope --valkey redis://valkey-0:6379
  stallscope diagnose --watch              refreshed each second, until Ctrl-C
  stallscope diagnose --stacks             surer, by what each thread does
  kubectl logs $POD | stallscope diagnose --logs -
  stallscope diagnose --json | jq .findings[].id
  stallscope diagnose --from stallscope-bundle.tar.gz     what it was then
  stallscope diagnose --from http://prefill-0:9477
  stallscope diagnose --from http://prometheus:9090 --at 10m

exit codes: 0 nothing found and all that was asked for was seen, 1 warning,
2 critical, 3 nothing found but something was unseen, 64 usage, 70 internal,
130 interrupted
"""


class _Diagnose:
    name = "diagnose"
    help = "what is wrong, on which rank or shard, since when, and the next command"
    group = "now"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument(
            "--from",
            dest="source",
            metavar="SOURCE",
            help=f"the folder of the engine's pages (default: ${FOLDER_VARIABLE}), a bundle, a "
            "recording, or the URL of an exporter or a Prometheus",
        )
        parser.add_argument(
            "--valkey",
            action="append",
            default=[],
            metavar="URL",
            help="a cache shard, such as redis://valkey-0:6379; once for each shard",
        )
        parser.add_argument(
            "--stacks",
            action="store_true",
            help="weigh the findings by the engine's stacks (py-spy); needs the pages",
        )
        parser.add_argument(
            "--logs",
            action="append",
            default=[],
            metavar="FILE",
            help="a log of the engine, - for standard input; once for each",
        )
        parser.add_argument(
            "--at",
            metavar="TIME",
            help="with the URL of a Prometheus: what was found then, in the whole fleet "
            "(2026-01-31T03:15, or 10m: that long ago)",
        )
        parser.add_argument(
            "--watch", action="store_true", help="look again each second, until Ctrl-C"
        )
        parser.add_argument(
            "--json", action="store_true", help="one JSON object (with --watch: one a line)"
        )

    def run(self, args: argparse.Namespace) -> int:
        # Checked before anything is imported or opened: a usage error costs nothing.
        if (recorded := _recorded(args)) is not None:
            from runbooks.cli.diagnose_recorded import diagnose_recorded, time_of

            at = None if args.at is None else time_of(args.at, time.time())
            return diagnose_recorded(recorded, args.json, at)
        pages_dir = find_pages_dir(args.source, [*args.valkey, *args.logs])
        check_urls(args.valkey)
        _check_looks(args, pages_dir)

        from exporters.readers.logs import LogError
        from exporters.readers.shard_access import AccessError
        from runbooks.cli.findings_text import report_text
        from runbooks.cli.terminal import emit, style
        from runbooks.compose import live_evaluator
        from runbooks.looks import LogLook, StackLook
        from runbooks.report import Asked, make_report

        # A rule that fails is told as unseen; its traceback is for whoever asks for it.
        logging.getLogger("stallscope").addHandler(logging.NullHandler())
        asked = Asked(pages_dir, tuple(args.valkey), tuple(args.logs))
        try:
            looks: list[Callable[[Snapshot], Snapshot]] = []
            if args.stacks and pages_dir is not None:
                looks.append(StackLook(pages_dir))
            if args.logs:
                looks.append(LogLook(args.logs, follow=args.watch))
            evaluator = live_evaluator(pages_dir, asked.valkey_urls, looks=looks)
        except LogError as error:
            raise UsageError(f"--logs: {error}") from error
        except AccessError as error:
            raise UsageError(str(error)) from error
        try:
            if args.watch:
                from runbooks.cli.watch import watch

                return watch(lambda: make_report(evaluator.tick(), asked), as_json=args.json)
            report = make_report(evaluator.look(), asked)
            emit(json.dumps(report.as_json()) if args.json else report_text(report, style()))
            return report.exit_code
        finally:
            evaluator.close()


def _recorded(args: argparse.Namespace) -> Source | None:
    """What `--from` names, where it is not the folder of a living engine. Raises UsageError."""
    from runbooks.sources import RECORDED, recognise

    source = recognise(args.source or os.environ.get(FOLDER_VARIABLE, "") or ".")
    if args.at is not None and source.kind != "url":
        raise UsageError("--at goes with --from and the URL of a Prometheus")
    if source.kind not in RECORDED | {"url"}:
        return None
    others = {"--valkey": args.valkey, "--logs": args.logs, "--stacks": args.stacks}
    others["--watch"] = args.watch
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"{given[0]} looks at what is now, and --from at what was told; choose")
    return source


def _check_looks(args: argparse.Namespace, pages_dir: Path | None) -> None:
    if args.stacks and pages_dir is None:
        raise UsageError(
            "--stacks weighs what pages show, and needs --from PAGES_DIR; for the stacks alone, "
            "run stallscope stacks"
        )
    if args.stacks and args.watch:
        raise UsageError("--stacks looks once: it would cost the host a py-spy a process a second")
    if args.logs.count("-") and args.watch:
        raise UsageError("--watch needs a log it can come back to; give --logs FILE")


def find_pages_dir(given: str | None, others: list[str]) -> Path | None:
    """The page folder asked for; None where only shards or logs were. Raises UsageError."""
    from runbooks.sources import recognise, refusal

    text = given if given is not None else os.environ.get(FOLDER_VARIABLE, "")
    if not text:
        if given is None and others:
            return None
        raise UsageError(
            f"nothing to look at; give --from PAGES_DIR, or set {FOLDER_VARIABLE} to the folder "
            "that the engine writes its pages to"
        )
    source = recognise(text)
    if fault := refusal(source):
        raise UsageError(f"--from: {fault}")
    return source.path


def check_urls(urls: list[str]) -> None:
    from exporters.readers.shard_url import ShardUrlError, parse

    for url in urls:
        try:
            parse(url)
        except ShardUrlError as error:
            raise UsageError(f"--valkey: {error}") from error


COMMAND: Command = _Diagnose()
