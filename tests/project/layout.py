"""Where the project's own files are and what its rooms are called, for the tests beside it."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("patched_engine", "exporters", "detectors", "dashboards", "runbooks", "lab")
ENGINE_ROOMS = ("patched_engine", "lab")  # may import torch, LMCache and vLLM
BASE_ROOMS = tuple(room for room in ROOMS if room not in ENGINE_ROOMS)
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
LMCACHE_IMPORTS = ROOT / "requirements" / "lmcache-imports.txt"
SECOND_LMCACHE = ROOT / ".venv" / "lmcache-0.5.6"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources(*rooms: str) -> Iterator[Path]:
    for room in rooms:
        yield from sorted((ROOT / room).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> set[str]:
    """Every module that the file names in an absolute import, at any depth of nesting."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found
