"""What a command is and where commands come from, so that a room adds one without importing us."""

from __future__ import annotations

import argparse
import importlib
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

ENTRY_POINT_GROUP: Final = "stallscope.commands"
_PYPROJECT: Final = Path(__file__).resolve().parents[2] / "pyproject.toml"

# The moments at which a command serves, in the order of the root help.
GROUPS: Final = {
    "now": "while it is happening",
    "after": "when it is over",
    "before": "before it happens",
    "set up": "so that it can be seen",
}


class Command(Protocol):
    """What a module exposes as COMMAND. Importing that module must be cheap: heavy imports belong
    in `run`, because the root help imports every command's module for its one line.

    `group` is a key of GROUPS; `run` returns an exit code. `add_arguments` may set
    `parser.epilog` to the command's examples.
    """

    name: str
    help: str
    group: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def targets(group: str = ENTRY_POINT_GROUP) -> dict[str, str]:
    """Every `module:attribute` of a group by name: installed ones, then a source checkout's own.

    A checkout that was never installed (or installed before its last change) has its entry points
    in pyproject.toml only.
    """
    found = {point.name: point.value for point in metadata.entry_points(group=group)}
    return dict(sorted({**found, **_checkout_targets(_PYPROJECT, group)}.items()))


def _checkout_targets(pyproject: Path, group: str) -> Mapping[str, str]:
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return {}
    if project.get("name") != "stallscope":  # some other project's file above site-packages
        return {}
    points: Mapping[str, str] = project.get("entry-points", {}).get(group, {})
    return points


def load(target: str) -> Command:
    """Import one command. Raises ImportError where its module, or what it needs, is not there."""
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    try:
        command: Command = getattr(module, attribute)
    except AttributeError as error:
        raise ImportError(f"{module_name} has no {attribute}", name=module_name) from error
    return command
