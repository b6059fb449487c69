"""What `stallscope doctor` gathers: rows of what is there, what is wrong and what is unseen."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from exporters.readers.page import plain
from exporters.readers.pages import PageFolder
from exporters.snapshot import Process

PROVIDERS: Final = "stallscope.doctor"
"""The entry-point group: functions `examine(say, seconds) -> list of sections as JSON values`."""

Level = Literal["ok", "note", "warning", "unseen"]
Say = Callable[[str], None]
_LEVELS: Final = get_args(Level)
_GOOD_HOOKS: Final = ("attached", "present")


@dataclass(frozen=True, slots=True)
class Row:
    """One thing: its state in a word, how that is to be taken, and why. `facts` are JSON values."""

    name: str
    state: str
    level: Level
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        base = {"name": self.name, "state": self.state, "level": self.level, "why": self.why}
        return {**base, **self.facts}


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under one title."""

    title: str
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [row.as_json() for row in self.rows]}


def ask(targets: Mapping[str, str], say: Say, seconds: float) -> list[Section]:
    """What each provider sees; one that fails is a row that says so."""
    sections: list[Section] = []
    for name, target in targets.items():
        module, _, attribute = target.partition(":")
        try:
            examine = getattr(importlib.import_module(module), attribute)
            sections += [_section(found) for found in examine(say, seconds)]
        except Exception as error:
            why = f"{target} failed: {type(error).__name__}: {' '.join(str(error).split())}"
            sections.append(Section(name, (Row(name, "unseen", "unseen", why),)))
    if not sections:
        row = Row("engine", "unseen", "unseen", "nothing is registered to look at: pip install it")
        sections.append(Section("engine", (row,)))
    return sections


def _section(found: Mapping[str, Any]) -> Section:
    return Section(str(found["title"]), tuple(_row(row) for row in found["rows"]))


def _row(found: Mapping[str, Any]) -> Row:
    level = str(found["level"])
    if level not in _LEVELS:
        raise ValueError(f"level {level!r}")
    known = ("name", "state", "level", "why")
    facts = {key: value for key, value in found.items() if key not in known}
    name, state, why = (str(found[key]) for key in ("name", "state", "why"))
    return Row(name, state, cast(Level, level), why, facts)


def live(folder: Path) -> list[Section]:
    """What the processes that write pages there have in them."""
    pages = PageFolder(folder)
    try:
        sample = pages.read(time.monotonic_ns())
    finally:
        pages.close()
    sections = [_live_section(page.process) for page in sample.pages]
    if sample.pages:
        from exporters.readers import stacks
        from runbooks import sight

        alive = [page.process for page in sample.pages if page.process.liveness != "dead"]
        targets, _ = stacks.of_pages(alive, folder)
        sections.append(sight.section(alive, [target.pid for target in targets]))
    if sample.unseen:
        rows = [
            Row(plain(item.source), "unseen", "unseen", plain(f"{item.detail}: {item.mend}"))
            for item in sample.unseen
        ]
        sections.append(Section("pages", tuple(rows)))
    return sections


def _live_section(process: Process) -> Section:
    who = "/".join(process.roles) or "process"
    place = "" if process.rank is None else f" rank {process.rank}"
    title = plain(f"{process.engine_id} {who}{place}, pid {process.pid}, {process.liveness}")
    rows = [*_live_patches(process), *_live_hooks(process)]
    if engine := str(process.info.get("resp_engine", "")):
        state, _, why = plain(engine).partition(": ")
        is_fallback = why.startswith("no compiled core")
        rows.append(Row("RESP client", state, "warning" if is_fallback else "ok", why))
    if process.liveness != "alive":
        why = f"no sign of life for {process.heartbeat_age_seconds:.0f} s: this is its last word"
        rows.append(Row("process", process.liveness, "note", why))
    return Section(title, tuple(rows))


def _live_patches(process: Process) -> list[Row]:
    listed = process.info.get("patches")
    if not isinstance(listed, dict) or not listed:
        why = "its page lists no patches: it runs without them, or an older stallscope"
        return [Row("patches", "unseen", "unseen", why)]
    rows = []
    for name, text in listed.items():
        state, _, why = plain(str(text)).partition(": ")
        level: Level = "ok" if state in ("applied", "not needed") else "note"
        if state == "refused":
            level = "warning"
        if state == "waiting":
            why = "what it patches was not imported by that process"
        rows.append(Row(plain(str(name)), state, level, why))
    return rows


def _live_hooks(process: Process) -> list[Row]:
    listed = process.info.get("hooks")
    if not isinstance(listed, dict):
        return [Row("hooks", "unseen", "unseen", "its page lists no hooks")]
    states = {plain(str(name)): plain(str(state)) for name, state in listed.items()}
    attached = sum(state in _GOOD_HOOKS for state in states.values())
    rows = [Row("hooks", f"{attached} attached", "ok")]
    for name, state in states.items():
        short, _, why = state.partition(": ")
        if short == "failed":
            rows.append(Row(name, short, "warning", why))
        elif short not in _GOOD_HOOKS:
            rows.append(Row(name, short, "note", "this version has no such function"))
    return rows


def exit_level(sections: Sequence[Section]) -> Level:
    """The worst: a warning before something unseen, as the exit codes have it."""
    levels = {row.level for section in sections for row in section.rows}
    return "warning" if "warning" in levels else "unseen" if "unseen" in levels else "ok"
