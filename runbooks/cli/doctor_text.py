"""A check-up for people: what needs a look in full, what is well in one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from runbooks.checkup import Level, Row, Section
from runbooks.cli.terminal import Style

_COLOURS: Final[dict[Level, str]] = {
    "ok": "green",
    "note": "dim",
    "warning": "yellow",
    "unseen": "yellow",
}
_SHORTENED: Final = "hooks"
_NAME_COLUMNS: Final = 20
_STATE_COLUMNS: Final = 10


def doctor_text(sections: Sequence[Section], look: Style, *, everything: bool) -> str:
    """One block a section, then one line that counts. `everything`: each row with its facts."""
    lines: list[str] = []
    for section in sections:
        lines.append(look.paint("bold", section.title))
        rows = list(section.rows)
        if section.title == _SHORTENED and not everything:
            attached = sum(row.level == "ok" for row in rows)
            rows = [row for row in rows if row.level in ("warning", "unseen")]
            rows.insert(0, Row("attached", str(attached), "ok"))
        for row in rows:
            lines += _row(row, look, everything)
        lines.append("")
    return "\n".join([*lines, _verdict(sections)])


def _row(row: Row, look: Style, everything: bool) -> list[str]:
    head = f"  {row.name:<{_NAME_COLUMNS}} "
    state = f"{row.state:<{_STATE_COLUMNS}}"
    first = head + look.paint(_COLOURS[row.level], state)
    told = [text for text in (row.why, *_facts(row, everything)) if text]
    indent = " " * (_NAME_COLUMNS + 3)
    if told and len(head) + len(state) + 1 + len(told[0]) <= look.width:
        first = f"{first} {told.pop(0)}"
    lines = [first.rstrip()]
    for text in told:
        lines += look.wrap(text, f"{indent}  ", first=indent)
    return lines


def _facts(row: Row, everything: bool) -> list[str]:
    facts = row.facts
    told = [str(facts.get("upstream", ""))]
    if everything:
        told.append(str(facts.get("summary", "")))
    touches = facts.get("touches")
    if isinstance(touches, list) and touches:
        told.append(f"touches {', '.join(map(str, touches))}")
    if everything:
        told.append(str(facts.get("library", "")))
    return told


def _verdict(sections: Sequence[Section]) -> str:
    counts = Counter(row.level for section in sections for row in section.rows)
    if not counts["warning"] and not counts["unseen"]:
        return "all is well"
    words = []
    if number := counts["warning"]:
        words.append(f"{number} warning{'s' if number > 1 else ''}")
    if number := counts["unseen"]:
        words.append(f"{number} unseen")
    return ", ".join(words)
