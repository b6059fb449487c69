"""`stallscope runbook`: what a finding means and what to do, in the terminal, with no network."""

from __future__ import annotations

import argparse
import json
from typing import Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError, nearest
from runbooks.cli.terminal import Style, emit, style, wants_colour
from runbooks.library import SECTIONS, Page, load_page, page_names
from runbooks.steps import without_comments

SCHEMA: Final = 1
FOLDER_VARIABLE: Final = "STALLSCOPE_DIR"
_EXAMPLES: Final = """examples:
  stallscope runbook                        the list of pages
  stallscope runbook straggler-rank         one page
  stallscope runbook store-skew --json      its sections and commands as data
  stallscope runbook rank-silent | less     raw Markdown when piped
  stallscope runbook stuck-lookup --run     carry out its steps, say what to do
  stallscope runbook shard-down --run --valkey redis://v-3:6379

exit codes of --run: 0 the fault is not there, 1 it is (warning), 2 it is
(critical), 3 it cannot be told, 64 usage, 70 internal, 130 interrupted
"""


class _Runbook:
    name = "runbook"
    help = "what a finding means, how to confirm it and what to do about it"
    group = "now"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument("page", nargs="?", metavar="NAME", help="a finding (none: list them)")
        parser.add_argument("--json", action="store_true", help="the page, or the run, as JSON")
        run = parser.add_argument_group("carry it out")
        run.add_argument(
            "--run",
            action="store_true",
            help="run the steps of Diagnosis, which only read, and say which mitigation fits",
        )
        run.add_argument(
            "--from",
            dest="source",
            metavar="PAGES_DIR",
            help=f"where to look (default: ${FOLDER_VARIABLE})",
        )
        run.add_argument(
            "--valkey", action="append", default=[], metavar="URL", help="once for each shard"
        )
        run.add_argument(
            "--set",
            dest="values",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a $NAME of the page that no look can find, such as POD",
        )

    def run(self, args: argparse.Namespace) -> int:
        if not args.run and (args.source is not None or args.valkey or args.values):
            raise UsageError("--from, --valkey and --set go with --run")
        if args.page is None:
            if args.run:
                raise UsageError("--run needs the page's name; stallscope runbook lists them")
            pages = [load_page(name) for name in page_names()]
            emit(_list_json(pages) if args.json else _list_text(pages, style()))
            return exit_codes.OK
        try:
            page = load_page(args.page)
        except KeyError:
            known = page_names()
            hint = nearest(args.page, known) or f"there are {', '.join(known)}"
            raise UsageError(f"there is no page {args.page!r}; {hint}") from None
        if args.run:
            from runbooks.cli.runbook_run import carry_out

            return carry_out(page, args.source, args.valkey, args.values, args.json)
        if args.json:
            emit(json.dumps(_page_json(page), indent=2))
        elif wants_colour():
            _render(without_comments(page.text))
        else:
            emit(without_comments(page.text))
        return exit_codes.OK


def _list_text(pages: list[Page], look: Style) -> str:
    lines: list[str] = []
    width = max((len(page.name) for page in pages), default=0) + 2
    for page in pages:
        lines += look.wrap(page.title, " " * width, first=f"{page.name:<{width}}")
    return "\n".join([*lines, "", "stallscope runbook NAME shows one."])


def _list_json(pages: list[Page]) -> str:
    rows = [{"name": page.name, "title": page.title} for page in pages]
    return json.dumps({"schema": SCHEMA, "pages": rows}, indent=2)


def _page_json(page: Page) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "name": page.name,
        "title": page.title,
        "sections": [
            {
                "name": name,
                "text": without_comments(page.sections[name]),
                "commands": page.commands(name),
            }
            for name in SECTIONS
        ],
    }


def _render(markdown: str) -> None:
    """On a terminal: headings, tables and code as rich draws them."""
    from rich.console import Console
    from rich.markdown import Markdown

    from runbooks.cli.terminal import terminal_width

    Console(width=terminal_width()).print(Markdown(markdown, code_theme="ansi_dark"))


COMMAND: Command = _Runbook()
