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

SCHEMA: Final = 1
_EXAMPLES: Final = """examples:
  stallscope runbook                        the list of pages
  stallscope runbook straggler-rank         one page
  stallscope runbook store-skew --json      its sections and commands as data
  stallscope runbook rank-silent | less     raw Markdown when piped
"""


class _Runbook:
    name = "runbook"
    help = "what a finding means, how to confirm it and what to do about it"
    group = "now"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument("page", nargs="?", metavar="NAME", help="a finding (none: list them)")
        parser.add_argument("--json", action="store_true", help="the page as JSON")

    def run(self, args: argparse.Namespace) -> int:
        if args.page is None:
            pages = [load_page(name) for name in page_names()]
            emit(_list_json(pages) if args.json else _list_text(pages, style()))
            return exit_codes.OK
        try:
            page = load_page(args.page)
        except KeyError:
            known = page_names()
            hint = nearest(args.page, known) or f"there are {', '.join(known)}"
            raise UsageError(f"there is no page {args.page!r}; {hint}") from None
        if args.json:
            emit(json.dumps(_page_json(page), indent=2))
        elif wants_colour():
            _render(page.text)
        else:
            emit(page.text)
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
            {"name": name, "text": page.sections[name], "commands": page.commands(name)}
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
