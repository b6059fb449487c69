"""`stallscope bundle`: all that is there to be seen, in one file, before a restart destroys it."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError

FOLDER_VARIABLE: Final = "STALLSCOPE_DIR"
SCHEMA: Final = 1
_EXAMPLES: Final = """examples:
  stallscope bundle                        of the pages in $STALLSCOPE_DIR
  stallscope bundle --from /dev/shm/stallscope --valkey redis://valkey-0:6379
  stallscope bundle --out /tmp/before-restart.tar.gz
  stallscope diagnose --from stallscope-20260101-031500.tar.gz

It holds pages, metrics, the shards' INFO, stacks where they may be read,
versions, and the engine's environment and configuration without secrets;
no prompt. Mode 0600. It is read with diagnose --from.

exit codes: 0 written whole, 3 written and something could not be had, 64 usage,
70 internal, 130 interrupted
"""


class _Bundle:
    name = "bundle"
    help = "save pages, metrics, INFO, stacks and settings in one file, secrets removed"
    group = "after"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument(
            "--from",
            dest="source",
            metavar="PAGES_DIR",
            help=f"the folder of the engine's pages (default: ${FOLDER_VARIABLE})",
        )
        parser.add_argument(
            "--valkey", action="append", default=[], metavar="URL", help="once for each shard"
        )
        parser.add_argument("--out", metavar="FILE", help="(stallscope-DATE-TIME.tar.gz)")
        parser.add_argument("--no-stacks", action="store_true", help="leave the stacks out")
        parser.add_argument("--json", action="store_true", help="say what was written as JSON")

    def run(self, args: argparse.Namespace) -> int:
        from runbooks.cli.diagnose import check_urls, find_pages_dir

        pages_dir = find_pages_dir(args.source, args.valkey)
        check_urls(args.valkey)
        out = Path(args.out or time.strftime("stallscope-%Y%m%d-%H%M%S.tar.gz"))
        if out.is_dir():
            raise UsageError(f"--out {out} is a folder; give a file in it")

        from exporters import bundle
        from exporters.readers.shard_access import AccessError
        from runbooks.cli.terminal import emit
        from runbooks.compose import live_evaluator

        try:
            evaluator = live_evaluator(pages_dir, tuple(args.valkey), with_samples=True)
        except AccessError as error:
            raise UsageError(str(error)) from error
        try:
            pictures = []
            for number in range(_PICTURES):
                if number:
                    time.sleep(_APART_SECONDS)
                pictures.append(evaluator.tick())
        finally:
            evaluator.close()
        stacks, missing = ("", []) if args.no_stacks else _stacks(pages_dir)
        try:
            missing += bundle.write(out, pictures, pages_dir, "asked for", stacks)
        except OSError as error:
            raise UsageError(f"--out {out}: {error.strerror}") from error
        missing += [unseen.detail for unseen in pictures[-1].snapshot.unseen]
        size = os.stat(out).st_size
        found = [finding.id for finding in pictures[-1].findings]
        if args.json:
            told = {"schema": SCHEMA, "path": str(out), "bytes": size, "findings": found}
            emit(json.dumps({**told, "missing": missing}))
        else:
            emit(f"written  {out} ({size / 1e6:.1f} MB): {', '.join(found) or 'nothing found'}")
            for line in missing:
                emit(f"missing  {line}")
            emit(f"read it  stallscope diagnose --from {out}")
        return exit_codes.UNSEEN if missing else exit_codes.OK


# As many as a rule may want to hold against each other, as far apart as ticks are.
_PICTURES: Final = 3
_APART_SECONDS: Final = 1.0


def _stacks(pages_dir: Path | None) -> tuple[str, list[str]]:
    """The stacks of the pages' processes as JSON, and what of them could not be read."""
    if pages_dir is None:
        return "", []
    from exporters.readers import stacks
    from exporters.readers.pages import PageFolder
    from runbooks.cli.stacks_text import stacks_json
    from runbooks.stack_groups import collapse

    pages = PageFolder(pages_dir)
    try:
        sample = pages.read(time.monotonic_ns())
    finally:
        pages.close()
    targets, unseen = stacks.of_pages((page.process for page in sample.pages), pages_dir)
    if not targets:
        return "", [item.detail for item in unseen]
    looked = stacks.read(targets)
    missing = [item.detail for item in (*unseen, *looked.unseen)]
    return json.dumps(stacks_json(looked, collapse(looked.stacks))), missing


COMMAND: Command = _Bundle()
