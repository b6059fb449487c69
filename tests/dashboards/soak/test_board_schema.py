"""Each board compiles as a constant of the types that Grafana itself is written against."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dashboards import generate

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
TYPES = Path(__file__).with_name("board_schema.ts.txt")
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext")
BOARDS = sorted(generate.FOLDER.glob("boards/*.json"))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the two packages; skipped where npm or its registry is not to be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here: the types cannot be had")
    folder = tmp_path_factory.mktemp("types")
    (folder / "package.json").write_text("{}")
    asked = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    done = subprocess.run(asked, cwd=folder, capture_output=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGES[0]}: {done.stderr.decode()[-200:]}")
    (folder / "types.ts").write_text(TYPES.read_text())
    return folder


def compiled(project, name, board):
    path = project / f"{name}.ts"
    constant = f"export const board: Board = {json.dumps(board)};\n"
    path.write_text(f"import type {{ Board }} from './types';\n{constant}")
    tsc = project / "node_modules/.bin/tsc"
    asked = [tsc, *OPTIONS, "--moduleResolution", "bundler", path.name]
    done = subprocess.run(
        asked, cwd=project, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_is_of_grafanas_types(project, path):
    code, said = compiled(project, path.stem, json.loads(path.read_text()))
    assert code == 0, said


def wrong_mode(board):
    board["panels"][1]["fieldConfig"]["defaults"]["thresholds"]["mode"] = "relative"


def wrong_kind(board):
    board["panels"][1]["type"] = "graph"


def unknown_field(board):
    board["panels"][1]["heigth"] = 8


def no_schema(board):
    del board["schemaVersion"]


@pytest.mark.parametrize("spoil", [wrong_mode, wrong_kind, unknown_field, no_schema])
def test_a_wrong_board_is_refused(project, spoil):
    board = json.loads(BOARDS[0].read_text())
    spoil(board)
    assert compiled(project, spoil.__name__, board)[0] != 0
