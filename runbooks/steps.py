"""A page's Diagnosis and Mitigation as data: what each step asks, and when each mend fits.

The Markdown carries both for a machine in comments, which no renderer shows:

    1. Is it there?
       <!-- reads: finding -->

    - restart the pod <!-- if: cause lost-completion -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from runbooks.library import COMMAND_BLOCK, Page

# What a step may read, and whether a word of its own follows.
READS: Final = {
    "finding": "optional",  # whether the page's finding (or the one named) stands
    "no-finding": "needed",  # whether that other finding, which looks alike, does not
    "cause": "needed",  # whether the finding's cause is that one
    "evidence": "needed",  # whether that figure of the finding is beyond its limit
    "patch": "needed",  # whether that patch is applied in every process
    "stack": "needed",  # whether a thread of the finding's process is inside a call of that name
    "output": "needed",  # whether the step's own commands print something of that pattern
    "no-output": "needed",  # whether they print nothing of it
}
_STEP: Final = re.compile(r"^(\d+)\. ", re.MULTILINE)
_ITEM: Final = re.compile(r"^(?:- |\d+\. )", re.MULTILINE)
_READS: Final = re.compile(r"<!-- reads: ([a-z-]+)(?: (.+?))? -->")
_IF: Final = re.compile(r"<!-- if: (.+?) -->")
_COMMENT: Final = re.compile(r"[ \n]*<!--.*?-->", re.DOTALL)


class PageFault(ValueError):
    """A page whose comments cannot be read; one line that says where."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of Diagnosis. `commands` are the shell lines written in it."""

    number: int
    question: str
    reads: str
    argument: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mend:
    """One item of Mitigation. `condition` is "always", "cause WORD", "step N pass" or
    "step N fail"."""

    text: str
    condition: str
    commands: tuple[str, ...]


def steps(page: Page) -> tuple[Step, ...]:
    """The numbered steps of Diagnosis; before those of a finding's page, whether it stands.

    The first step decides whether the page's fault is there. Raises PageFault.
    """
    found = [Step(0, "Does the finding stand?", "finding", "", ())] if page.is_finding else []
    for number, body in _numbered(page.sections["Diagnosis"]):
        match = _READS.search(body)
        if match is None or match[1] not in READS:
            raise PageFault(f"{page.name}: step {number} does not say what is read of it")
        if READS[match[1]] == "needed" and not match[2]:
            raise PageFault(f"{page.name}: step {number} reads {match[1]} of nothing")
        question = " ".join(without_comments(body).split("\n\n")[0].split())
        found.append(Step(number, question, match[1], match[2] or "", _commands(body)))
    return tuple(found)


def mends(page: Page) -> tuple[Mend, ...]:
    """The items of Mitigation, in order. Raises PageFault."""
    text = page.sections["Mitigation"]
    starts = [match.start() for match in _ITEM.finditer(text)]
    found = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        body = _item_body(text[start:end])
        match = _IF.search(body)
        condition = match[1] if match else "always"
        if not re.fullmatch(r"always|cause [\w-]+|step \d+ (?:pass|fail)", condition):
            raise PageFault(f"{page.name}: {condition!r} is no condition of a mitigation")
        words = _ITEM.sub("", without_comments(COMMAND_BLOCK.sub("", body)), count=1)
        found.append(Mend(" ".join(words.split()), condition, _commands(body)))
    return tuple(found)


def without_comments(text: str) -> str:
    """Markdown as a person reads it."""
    return _COMMENT.sub("", text)


def _numbered(section: str) -> list[tuple[int, str]]:
    starts = list(_STEP.finditer(section))
    ends = [match.start() for match in starts[1:]] + [len(section)]
    return [
        (int(match[1]), section[match.end() : end]) for match, end in zip(starts, ends, strict=True)
    ]


def _item_body(text: str) -> str:
    """An item and what is indented under it; what follows it belongs to no item."""
    lines = text.splitlines()
    kept = [lines[0]]
    for line in lines[1:]:
        if line and not line.startswith(" "):
            break
        kept.append(line)
    return "\n".join(kept)


def _commands(body: str) -> tuple[str, ...]:
    return tuple(
        line.strip()
        for block in COMMAND_BLOCK.finditer(body)
        for line in block["body"].splitlines()
        if line.strip()
    )
