"""`stallscope runbook NAME --run`: the steps as they are carried out, then what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Final

from runbooks.checks import Context, PageRun, Result, check, conclude
from runbooks.cli import exit_codes
from runbooks.cli.parser import UsageError
from runbooks.cli.terminal import Style, emit, style
from runbooks.library import VARIABLE, Page
from runbooks.steps import Mend, steps

SCHEMA: Final = 1
_FOLDER: Final = "STALLSCOPE_DIR"
_COLOURS: Final = {"pass": "red", "fail": "green", "unknown": "yellow"}
_INDENT: Final = " " * 11


def carry_out(
    page: Page, source: str | None, urls: list[str], settings: list[str], as_json: bool
) -> int:
    """Run the page and tell it. Raises UsageError."""
    values = _values(settings)
    source = source if source is not None else os.environ.get(_FOLDER) or None
    if source is not None:
        values.setdefault(_FOLDER, source)
    context = Context(source, tuple(urls), values)
    look = style()
    results: list[Result] = []
    for step in steps(page):
        results.append(check(step, page, context))
        if not as_json:  # as it goes: a step may take seconds
            emit("\n".join([*_step_lines(results[-1], look), ""]))
            sys.stdout.flush()
    done = conclude(page, tuple(results), context)
    if as_json:
        emit(json.dumps(_run_json(done), indent=2))
    else:
        emit("\n".join(_verdict_lines(done, look)))
        _offer(done.mends, values, look)
    return _exit_code(done)


def _values(settings: list[str]) -> dict[str, str]:
    values = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator or not re.fullmatch(r"[A-Z][A-Z_]*", name):
            raise UsageError(f"--set {text!r}: write it like POD=prefill-0")
        values[name] = value
    return values


def _step_lines(result: Result, look: Style) -> list[str]:
    word = look.paint(_COLOURS[result.outcome], f"{result.outcome:<8}")
    lines = look.wrap(result.step.question, _INDENT, first=f"{result.step.number}. {word}")
    lines += look.wrap(f"{result.said}", _INDENT, first=_INDENT)
    lines += look.wrap(look.paint("dim", f"$ {result.command}"), _INDENT + "  ", first=_INDENT)
    return lines


def _verdict_lines(done: PageRun, look: Style) -> list[str]:
    name = done.page.name
    if done.verdict == "not there":
        return look.wrap(f"not there  {name}: nothing to mend", _INDENT, first="")
    if done.verdict == "cannot tell":
        why = done.results[0].said if done.results else "the page has no steps"
        return look.wrap(f"unknown    whether {name} is there: {why}", _INDENT, first="")
    lines = look.wrap(look.paint("bold", f"there      {name}; what to do:"), _INDENT, first="")
    for mend in done.mends:
        lines += look.wrap(mend.text, _INDENT + "  ", first=_INDENT + "- ")
        lines += [f"{_INDENT}  $ {command}" for command in mend.commands]
    return lines


def _offer(found: tuple[Mend, ...], values: dict[str, str], look: Style) -> None:
    """On a terminal, ask for each command of a mitigation whether to run it now: it changes
    something, and is never run unasked."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        return
    for mend in found:
        for line in mend.commands:
            if "=" in line.split()[0] or line.startswith("stallscope "):
                continue  # a setting, or a look
            if any(name not in values for name in VARIABLE.findall(line)):
                continue
            command = VARIABLE.sub(lambda match: values[match[1]], line)
            emit(f"\nrun `{command}` now? [y/N] ")
            sys.stdout.flush()
            if sys.stdin.readline().strip().lower() in ("y", "yes"):
                code = subprocess.run(["/bin/sh", "-c", command], check=False).returncode
                emit(look.paint("dim", f"ended with {code}"))


def _run_json(done: PageRun) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "page": done.page.name,
        "verdict": done.verdict,
        "severity": done.severity,
        "steps": [
            {
                "number": r.step.number,
                "question": r.step.question,
                "outcome": r.outcome,
                "said": r.said,
                "command": r.command,
            }
            for r in done.results
        ],
        "mitigations": [
            {"text": m.text, "condition": m.condition, "commands": list(m.commands)}
            for m in done.mends
        ],
    }


def _exit_code(done: PageRun) -> int:
    if done.verdict == "cannot tell":
        return exit_codes.UNSEEN
    if done.verdict == "not there":
        return exit_codes.OK
    return exit_codes.CRITICAL if done.severity == "critical" else exit_codes.WARNING
