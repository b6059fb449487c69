"""The base install is a small sidecar image: its modules must load where there is no engine."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.project.layout import BASE_ROOMS, ROOT, module_name, pyproject, sources

ENGINE_PACKAGES = ("torch", "vllm", "lmcache")

IMPORT_WITHOUT_ENGINE = """
import importlib, sys

class NoEngine:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is not in the base install", name=name)

sys.meta_path.insert(0, NoEngine())
for name in {modules!r}:
    importlib.import_module(name)
"""


def test_every_base_module_imports_without_torch_vllm_and_lmcache() -> None:
    # The CLI's help imports the module of every command, the lab's among them.
    commands = pyproject()["project"]["entry-points"]["stallscope.commands"].values()
    modules = [module_name(path) for path in sources(*BASE_ROOMS)]
    modules += [target.partition(":")[0] for target in commands]
    code = IMPORT_WITHOUT_ENGINE.format(blocked=ENGINE_PACKAGES, modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_blocker_used_above_does_block() -> None:
    code = IMPORT_WITHOUT_ENGINE.format(blocked=ENGINE_PACKAGES, modules=["torch"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "torch is not in the base install" in done.stderr


def closure(name: str, seen: set[str]) -> Iterator[str]:
    """Every distribution that installing `name` without extras brings along."""
    if name in seen:
        return
    seen.add(name)
    yield name
    for text in metadata.requires(name) or []:
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield from closure(need.name.lower(), seen)


def test_no_base_dependency_pulls_the_engine() -> None:
    seen: set[str] = set()
    for text in pyproject()["project"]["dependencies"]:
        list(closure(Requirement(text).name.lower(), seen))
    assert seen.isdisjoint(ENGINE_PACKAGES)
    assert len(seen) < 20, f"the sidecar's image should stay small: {sorted(seen)}"


GROUND_FLOOR = [
    "page_layout",
    "page_fields",
    "log_lines",
    *(p.stem for p in (ROOT / "exporters").glob("catalog*.py")),
]
GROUND_FLOOR.remove("catalog_docs")  # a command
GROUND_FLOOR.append("log_lines")


@pytest.mark.parametrize("name", GROUND_FLOOR)
def test_the_ground_floor_stands_on_the_standard_library(name: str) -> None:
    path = ROOT / "exporters" / f"{name}.py"
    allowed = {*sys.stdlib_module_names, *(f"exporters.{other}" for other in GROUND_FLOOR)}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only, so that the arrows can be read"
            names = [node.module or ""]
        for imported in names:
            assert {imported, re.split(r"\.", imported)[0]} & allowed, f"{name} imports {imported}"
