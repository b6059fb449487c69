"""Defaults from a file, so that a fleet's addresses are typed once.

    # ~/.config/stallscope/config.toml, or what STALLSCOPE_CONFIG names
    [diagnose]
    from = "/run/stallscope"
    valkey = ["redis://valkey-0:6379", "redis://valkey-1:6379"]

A table for each command, its long options as keys. The command line comes first, then the
environment, then the file.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any, Final

from runbooks.cli.parser import UsageError, nearest

VARIABLE: Final = "STALLSCOPE_CONFIG"
_DEFAULT: Final = Path("stallscope") / "config.toml"
# An option that an environment variable sets too: the variable goes before the file.
_BY_ENVIRONMENT: Final = {"from": "STALLSCOPE_DIR"}


def path() -> Path:
    """The file that is read, there or not."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / _DEFAULT


def apply(name: str, parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Fill in what was not given on the command line `name`. Raises UsageError."""
    for option, value in _table(name).items():
        action = parser._option_string_actions.get(f"--{option}")
        if action is None or (action.nargs == 0 and not isinstance(value, bool)):
            known = [o.removeprefix("--") for o in parser._option_string_actions if "--" in o]
            hint = nearest(option, known) or "see its --help"
            raise UsageError(f"{path()}: [{name}] has no option {option!r}; {hint}")
        if getattr(args, action.dest) != action.default:
            continue
        if os.environ.get(_BY_ENVIRONMENT.get(option, "")):
            continue
        setattr(args, action.dest, _converted(name, option, action, value))


def _converted(name: str, option: str, action: argparse.Action, value: Any) -> Any:
    several = isinstance(action.default, list)
    if several != isinstance(value, list):
        wanted = "a list" if several else "one value"
        raise UsageError(f"{path()}: [{name}] {option}: give {wanted}")
    if several:
        return [str(one) for one in value]
    if isinstance(value, bool) or action.nargs == 0:
        return value
    convert = action.type if callable(action.type) else str
    try:
        made = convert(str(value))
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{path()}: [{name}] {option}: {error}") from error
    if action.choices is not None and made not in action.choices:
        listed = ", ".join(map(str, action.choices))
        raise UsageError(f"{path()}: [{name}] {option}: {value!r} is none of {listed}")
    return made


def _table(name: str) -> dict[str, Any]:
    file = path()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise UsageError(f"{VARIABLE}: there is no file {file}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}") from error
    table = whole.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: {name} is no table; write [{name}]")
    return table
