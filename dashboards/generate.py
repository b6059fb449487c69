"""Every file that is generated: its place, its text, and whether what lies there is still it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dashboards import alertmanager, boards, rule_files
from dashboards.durations import Scale
from dashboards.model import Links, to_json

FOLDER: Final = Path(__file__).resolve().parent / "generated"
SHIPPED: Final = Scale()
RULES_FILE: Final = "rules/stallscope.yaml"
ALERTMANAGER_FILE: Final = "alertmanager/example.yaml"


def files(scale: Scale = SHIPPED, runbook_base: str = rule_files.RUNBOOK_BASE) -> Mapping[str, str]:
    """Text by its place in the folder. Raises ImportError without PyYAML."""
    links = Links(runbook_base)
    found = {
        f"boards/{board.uid}.json": to_json(boards.build(board, links)) for board in boards.BOARDS
    }
    found[RULES_FILE] = rule_files.to_yaml(
        rule_files.build(scale, links), "Recording rules and alerts of stallscope"
    )
    found[ALERTMANAGER_FILE] = rule_files.to_yaml(
        alertmanager.build(scale), "An example: replace the receivers' URLs"
    )
    return found


def write(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Write what differs; the places written. Raises OSError."""
    changed = [name for name, text in wanted.items() if read(folder / name) != text]
    for name in changed:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")
    return changed


def stale(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """The places where a file is missing, differs, or belongs to nothing any more."""
    there = {
        path.relative_to(folder).as_posix()
        for path in folder.glob("*/*")
        if path.suffix in {".json", ".yaml"}
    }
    differs = {name for name, text in wanted.items() if read(folder / name) != text}
    return sorted(differs | (there - wanted.keys()))


def read(path: Path) -> str | None:
    """The text there, or None."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
