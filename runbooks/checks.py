"""Carries out a runbook page's steps, and reads what came of each: pass, fail or unknown.

Pass means that what was seen speaks for the page's fault, fail that it speaks against it. What
could not be seen decides nothing and is unknown, with the reason.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from runbooks.library import VARIABLE, Page
from runbooks.steps import Mend, Step, mends, steps

Outcome = Literal["pass", "fail", "unknown"]
Verdict = Literal["there", "not there", "cannot tell"]
# What a command prints, and its exit code.
Runner = Callable[[tuple[str, ...]], tuple[int, str]]

COMMAND_SECONDS: Final = 60.0
_MOST_SHOWN: Final = 160


@dataclass(frozen=True, slots=True)
class Result:
    """What one step came to; `said` is one line for a person."""

    step: Step
    outcome: Outcome
    said: str
    command: str


@dataclass(frozen=True, slots=True)
class PageRun:
    """All steps of one page, whether its fault is there, and the mitigations that fit."""

    page: Page
    results: tuple[Result, ...]
    verdict: Verdict
    severity: str
    mends: tuple[Mend, ...]


@dataclass
class Context:
    """Where to look, and what was seen so far: each command runs once for all steps."""

    source: str | None
    valkey_urls: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    run: Runner = field(default_factory=lambda: run_command)
    _seen: dict[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)

    def read(self, command: tuple[str, ...]) -> tuple[int, str]:
        """What that command prints; it is run at the first time."""
        if command not in self._seen:
            self._seen[command] = self.run(command)
        return self._seen[command]

    def stallscope(self, name: str, *options: str) -> tuple[tuple[str, ...], dict[str, Any]]:
        """One of our own commands with --json: how it is called, and its object. Raises
        CannotRead."""
        command = ("stallscope", name, *options, "--json")
        if self.source is not None and name != "trace":
            command += ("--from", self.source)
        if name == "diagnose":
            for url in self.valkey_urls:
                command += ("--valkey", url)
        code, text = self.read(command)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            last = (text.strip().splitlines() or [f"it ended with {code} and said nothing"])[-1]
            raise CannotRead(command, last[:_MOST_SHOWN])
        return command, answer

    def judged(self, page: Page) -> tuple[tuple[str, ...], dict[str, Any]]:
        """What the command says that has the page's finding: diagnose, or trace. Raises
        CannotRead."""
        if not page.is_of_profiles:
            return self.stallscope("diagnose")
        profile = self.values.get("PROFILE", "")
        if not profile:
            why = "only a recorded profile shows it: --set PROFILE=FILE"
            raise CannotRead(("stallscope", "trace", "$PROFILE"), why)
        return self.stallscope("trace", *shlex.split(profile))


class CannotRead(Exception):
    """A command that gave no answer to read."""

    def __init__(self, command: tuple[str, ...], why: str) -> None:
        super().__init__(why)
        self.command = command


def run_command(command: tuple[str, ...]) -> tuple[int, str]:
    """Run a command, ours by this interpreter, another by the shell; what it printed, under a
    deadline."""
    is_ours = command[0] == "stallscope"
    words = [sys.executable, "-m", "runbooks.cli.main", *command[1:]]
    try:
        done = subprocess.run(
            words if is_ours else ["/bin/sh", "-c", *command],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {COMMAND_SECONDS:.0f} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout if is_ours and done.stdout else done.stdout + done.stderr


def run_page(page: Page, context: Context) -> PageRun:
    """Carry out every step of a page. Raises steps.PageFault."""
    return conclude(page, tuple(check(step, page, context) for step in steps(page)), context)


def conclude(page: Page, results: tuple[Result, ...], context: Context) -> PageRun:
    """What the steps say together, and the mitigations that fit. Raises steps.PageFault."""
    verdict = _verdict(results)
    finding = _finding(page, context) if verdict == "there" and page.is_finding else None
    cause = str(finding.get("cause", "")) if finding else ""
    return PageRun(
        page,
        results,
        verdict,
        str(finding.get("severity", "")) if finding else "",
        tuple(_fitting(mends(page), results, cause)) if verdict == "there" else (),
    )


def check(step: Step, page: Page, context: Context) -> Result:
    """Carry out one step."""
    try:
        outcome, said, command = _CHECKS[step.reads](step, page, context)
    except CannotRead as error:
        return Result(step, "unknown", str(error), shown(error.command))
    return Result(step, outcome, said, command)


def shown(command: Iterable[str]) -> str:
    """A command as a person would type it, without passwords."""
    from exporters.readers.shard_url import without_credentials

    words = [without_credentials(word) if "://" in word else word for word in command]
    return " ".join(words)


_Answer = tuple[Outcome, str, str]
_OPPOSITE: Final[Mapping[Outcome, Outcome]] = {
    "pass": "fail",
    "fail": "pass",
    "unknown": "unknown",
}


def _stands(step: Step, page: Page, context: Context) -> _Answer:
    name = step.argument or page.name
    command, answer = context.stallscope("diagnose") if step.argument else context.judged(page)
    found = [f for f in _findings(answer) if f.get("id") == name]
    if found:
        return "pass", str(found[0].get("summary", name)), shown(command)
    why = _abstained(answer, name)
    if why:
        return "unknown", why, shown(command)
    return "fail", f"no finding {name}", shown(command)


def _other_stands(step: Step, page: Page, context: Context) -> _Answer:
    outcome, said, command = _stands(step, page, context)
    return _OPPOSITE[outcome], said, command


def _has_cause(step: Step, page: Page, context: Context) -> _Answer:
    command, _ = context.judged(page)
    finding = _finding(page, context)
    if finding is None:
        return "unknown", f"no finding {page.name} that could have a cause", shown(command)
    cause = str(finding.get("cause", ""))
    outcome: Outcome = "pass" if cause == step.argument else "fail"
    return outcome, f"its cause is {cause or 'not told'}", shown(command)


def _has_evidence(step: Step, page: Page, context: Context) -> _Answer:
    command, _ = context.judged(page)
    finding = _finding(page, context)
    listed = finding.get("evidence", []) if finding else []
    for evidence in listed if isinstance(listed, list) else []:
        if evidence.get("name") == step.argument:
            value, limit = evidence.get("value"), evidence.get("limit")
            if not isinstance(value, int | float):
                break
            beyond = limit is None or value >= limit
            return "pass" if beyond else "fail", str(evidence.get("text", "")), shown(command)
    return "unknown", f"the finding has no figure {step.argument}", shown(command)


def _has_patch(step: Step, page: Page, context: Context) -> _Answer:
    command, answer = context.stallscope("diagnose")
    states = answer.get("seen", {}).get("patches", {}).get(step.argument, [])
    if not states:
        return "unknown", f"no process says what became of {step.argument}", shown(command)
    outcome: Outcome = "pass" if set(states) <= {"applied", "not_needed"} else "fail"
    return outcome, f"{step.argument}: {', '.join(sorted(states))}", shown(command)


def _is_inside(step: Step, page: Page, context: Context) -> _Answer:
    finding = _finding(page, context)
    command, answer = context.stallscope("stacks")
    rank = finding.get("rank") if finding else None
    processes = [p for p in answer.get("processes", []) if rank is None or p.get("rank") == rank]
    threads = [t for p in processes for t in p.get("threads", [])]
    if not threads:
        missing = [str(u.get("detail", "")) for u in answer.get("unseen", [])]
        return "unknown", (missing or ["no stack could be read"])[0], shown(command)
    pattern = re.compile(step.argument)
    for thread in threads:
        for frame in thread.get("frames", []):
            name = str(frame.get("function", ""))
            if pattern.search(name):
                who = "" if rank is None else f"rank {rank}: "
                return "pass", f"{who}thread {thread.get('name')} is in {name}", shown(command)
    return "fail", f"none of {len(threads)} threads is in {step.argument}", shown(command)


def _prints(step: Step, page: Page, context: Context) -> _Answer:
    values = {**context.values, **_values(_finding(page, context, quietly=True))}
    lines = []
    for line in step.commands:
        missing = [name for name in VARIABLE.findall(line) if name not in values]
        if missing:
            return "unknown", f"by hand: ${missing[0]} is not known here", line
        lines.append(VARIABLE.sub(lambda match: values[match[1]], line))
    command = " && ".join(lines)
    code, text = context.read((command,))
    if match := re.search(step.argument, text, re.MULTILINE | re.IGNORECASE):
        return "pass", " ".join(match[0].split())[:_MOST_SHOWN], command
    if code in (126, 127) or (code and not text.strip()):
        why = (text.strip().splitlines() or [f"it ended with {code}"])[-1]
        return "unknown", why[:_MOST_SHOWN], command
    return "fail", f"nothing like {step.argument} in what it printed", command


def _does_not_print(step: Step, page: Page, context: Context) -> _Answer:
    outcome, said, command = _prints(step, page, context)
    return _OPPOSITE[outcome], said, command


_CHECKS: Final[Mapping[str, Callable[[Step, Page, Context], _Answer]]] = {
    "finding": _stands,
    "no-finding": _other_stands,
    "cause": _has_cause,
    "evidence": _has_evidence,
    "patch": _has_patch,
    "stack": _is_inside,
    "output": _prints,
    "no-output": _does_not_print,
}


def _findings(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All findings, symptoms of others among them."""
    found: list[dict[str, Any]] = []
    listed = answer.get("findings", [])
    for finding in listed if isinstance(listed, list) else []:
        found += [finding, *_findings({"findings": finding.get("symptoms", [])})]
    return found


def _finding(page: Page, context: Context, quietly: bool = False) -> dict[str, Any] | None:
    """The worst finding of the page's name. Raises CannotRead, unless `quietly`."""
    try:
        _, answer = context.judged(page)
    except CannotRead:
        if quietly:
            return None
        raise
    return next((f for f in _findings(answer) if f.get("id") == page.name), None)


def _abstained(answer: Mapping[str, Any], rule: str) -> str:
    """Why a rule's silence says nothing; "" where it decided."""
    seen = answer.get("seen")
    unseen = answer.get("unseen", [])
    mine = [u for u in unseen if u.get("source") == rule]
    if seen is None:  # a profile: its rules that could not decide are among the unseen
        return str(mine[0].get("detail", "")) if mine else ""
    if rule in seen.get("rules", []):
        return ""
    mine = mine or unseen
    return str(mine[0].get("detail", "")) if mine else f"the rule {rule} was not asked"


def _values(finding: Mapping[str, Any] | None) -> dict[str, str]:
    values = finding.get("values", {}) if finding else {}
    return {str(k): str(v) for k, v in values.items()} if isinstance(values, dict) else {}


def _verdict(results: Iterable[Result]) -> Verdict:
    """The first step of a page asks whether the fault is there; the others, why and where."""
    first = next(iter(results), None)
    if first is None or first.outcome == "unknown":
        return "cannot tell"
    return "there" if first.outcome == "pass" else "not there"


def _fitting(listed: Iterable[Mend], results: Iterable[Result], cause: str) -> Iterable[Mend]:
    """Those whose condition holds; the unconditional ones after them."""
    outcomes = {result.step.number: result.outcome for result in results}
    certain, always = [], []
    for mend in listed:
        kind, *words = mend.condition.split()
        if kind == "always":
            always.append(mend)
        elif (kind == "cause" and words == [cause]) or (
            kind == "step" and outcomes.get(int(words[0])) == words[1]
        ):
            certain.append(mend)
    return [*certain, *always]
