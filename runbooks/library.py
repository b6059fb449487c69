"""The runbook pages as data: one Markdown file per finding, its sections and its first step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from detectors import ALL_RULES
from detectors.profile_rules import PROFILE_RULES

PAGES_FOLDER: Final = Path(__file__).resolve().parent / "pages"
FINDINGS: Final = frozenset(rule.name for rule in ALL_RULES)
PROFILE_FINDINGS: Final = frozenset(rule.name for rule in PROFILE_RULES)
SECTIONS: Final = ("Meaning", "Impact", "Diagnosis", "Mitigation", "How it was found")

COMMAND_BLOCK: Final = re.compile(r"^ *```sh\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
VARIABLE: Final = re.compile(r"\$([A-Z][A-Z_]*)")


@dataclass(frozen=True, slots=True)
class Page:
    """One runbook page. `title` is its first line without the finding's name."""

    name: str
    title: str
    sections: Mapping[str, str]
    text: str

    @property
    def is_finding(self) -> bool:
        """Whether a rule has this name; another page is for an alert alone."""
        return self.name in FINDINGS | PROFILE_FINDINGS

    @property
    def is_of_profiles(self) -> bool:
        """Whether only a recorded profile can show its finding."""
        return self.name in PROFILE_FINDINGS - FINDINGS

    def commands(self, section: str) -> tuple[str, ...]:
        """The shell lines of one section, in order."""
        blocks = COMMAND_BLOCK.finditer(self.sections[section])
        return tuple(
            line.strip() for block in blocks for line in block["body"].splitlines() if line.strip()
        )

    def first_step(self, values: Mapping[str, str]) -> str | None:
        """The first command of Diagnosis with `$NAME` filled in, or None where one is not known."""
        steps = self.commands("Diagnosis")
        if not steps or any(name not in values for name in VARIABLE.findall(steps[0])):
            return None
        return VARIABLE.sub(lambda match: values[match[1]], steps[0])


def page_names() -> tuple[str, ...]:
    """Names of all pages, which are the ids of the findings they explain."""
    return tuple(sorted(path.stem for path in PAGES_FOLDER.glob("*.md")))


def load_page(name: str) -> Page:
    """One page by name. Raises KeyError where there is none."""
    if name not in page_names():
        raise KeyError(name)
    text = (PAGES_FOLDER / f"{name}.md").read_text(encoding="utf-8")
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = {}
    for part in parts:
        heading, _, body = part.partition("\n")
        sections[heading.strip()] = body.strip("\n")
    title = head.strip().removeprefix("# ").removeprefix(f"{name}: ")
    return Page(name=name, title=title, sections=sections, text=text)
