"""The arrows between rooms: the code keeps them, and each contract really catches its offence."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.layout import ROOMS, ROOT

LINT = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
# The modules that the contracts name must be there in the small tree that breaks them.
NAMED = (
    "exporters/page_layout.py",
    "exporters/catalog.py",
    "exporters/log_lines.py",
    "exporters/snapshot.py",
)


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(LINT, cwd=folder, capture_output=True, text=True, check=False)


def test_the_code_keeps_every_arrow() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def empty_house(tmp_path: Path) -> Path:
    """The six rooms with nothing in them, under the real contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    for name in NAMED:
        (tmp_path / name).touch()
    return tmp_path


ALLOWED = (
    ("patched_engine/page.py", "from exporters import catalog, page_layout"),
    ("patched_engine/hooks.py", "from exporters.log_lines import find"),
    ("detectors/store_skew.py", "from exporters.snapshot import Snapshot"),
    ("detectors/store_skew.py", "from exporters import catalog"),
    ("dashboards/boards.py", "import detectors"),
    ("dashboards/boards.py", "import exporters.catalog"),
    ("runbooks/cli/diagnose.py", "import exporters.snapshot, detectors, dashboards, rich"),
    ("lab/workers.py", "from patched_engine import install"),
    ("lab/demo.py", "import runbooks, detectors, exporters.snapshot, torch"),
    ("patched_engine/hooks.py", "import torch"),
)

FORBIDDEN = (
    ("patched_engine/page.py", "import exporters.snapshot", "patched_engine uses only"),
    ("patched_engine/page.py", "import detectors", "patched_engine uses only"),
    ("exporters/server.py", "import detectors", "exporters uses no other room"),
    ("exporters/server.py", "import runbooks", "exporters uses no other room"),
    ("exporters/page_layout.py", "import lab", "exporters uses no other room"),
    ("detectors/skew.py", "import exporters.page_layout", "detectors see only Snapshots"),
    ("detectors/skew.py", "import os", "detectors do no I/O"),
    ("detectors/skew.py", "def f():\n    import time", "detectors do no I/O"),
    ("dashboards/boards.py", "import exporters.snapshot", "dashboards are built from"),
    ("runbooks/cli.py", "import lab", "runbooks reaches the engine and the lab"),
    (
        "runbooks/cli.py",
        "from patched_engine import install",
        "runbooks reaches the engine and the lab",
    ),
    ("lab/workers.py", "import exporters.page_layout", "lab installs the hooks"),
    ("lab/workers.py", "import patched_engine.page", "lab installs the hooks"),
    ("lab/workers.py", "import dashboards", "lab installs the hooks"),
    ("exporters/server.py", "def f():\n    import torch", "the base install never imports"),
    ("runbooks/cli.py", "import lmcache.v1", "the base install never imports"),
)


def write_module(house: Path, name: str, code: str) -> None:
    (house / name).parent.mkdir(exist_ok=True)
    (house / name).parent.joinpath("__init__.py").touch()
    (house / name).write_text(code + "\n")
    # What it imports must be a module of the tree, or the linter takes it for no import at all.
    (house / "patched_engine" / "page.py").touch()


def test_allowed_arrows_pass(empty_house: Path) -> None:
    by_file: dict[str, list[str]] = {}
    for name, code in ALLOWED:
        by_file.setdefault(name, []).append(code)
    for name, lines in by_file.items():
        write_module(empty_house, name, "\n".join(lines))
    done = lint(empty_house)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "code", "contract"), FORBIDDEN)
def test_forbidden_arrows_are_named(empty_house: Path, name: str, code: str, contract: str) -> None:
    write_module(empty_house, name, code)
    done = lint(empty_house)
    assert done.returncode == 1, done.stdout
    broken = [line for line in done.stdout.splitlines() if line.endswith(" BROKEN")]
    assert [line for line in broken if line.startswith(contract)], done.stdout
