"""The wheel: the six rooms and nothing that another distribution of an engine image also holds."""

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.project.layout import ROOMS, ROOT, pyproject

BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel_files(wheel_folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(next(wheel_folder.glob("*.whl"))) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_it_holds_the_six_rooms_and_its_own_metadata(wheel_files: dict[str, bytes]) -> None:
    own = f"stallscope-{pyproject()['project']['version']}.dist-info"
    assert {name.partition("/")[0] for name in wheel_files} == {*ROOMS, own}
    assert [name for name in wheel_files if "__pycache__" in name] == []


def test_it_holds_every_file_of_a_room(wheel_files: dict[str, bytes]) -> None:
    def is_ours(path: Path) -> bool:
        return path.is_file() and path.suffix != ".pyc"

    rooms = {str(p.relative_to(ROOT)) for r in ROOMS for p in (ROOT / r).rglob("*") if is_ours(p)}
    assert {f"{room}/py.typed" for room in ROOMS} <= rooms
    assert rooms <= set(wheel_files)  # runbook pages and other data files among them


def test_it_registers_the_command_and_the_plugins(wheel_files: dict[str, bytes]) -> None:
    text = next(v for k, v in wheel_files.items() if k.endswith("entry_points.txt")).decode()
    for line in (
        "stallscope = runbooks.cli.main:main",
        "stallscope = patched_engine.plugin:register",
        "lab = lab.cli:COMMAND",
    ):
        assert line in text


def test_it_asks_for_no_engine_unless_an_extra_does(wheel_files: dict[str, bytes]) -> None:
    text = next(v for k, v in wheel_files.items() if k.endswith("METADATA")).decode()
    needs = [line for line in text.splitlines() if line.startswith("Requires-Dist:")]
    engine = [n for n in needs if n.split()[1].startswith(("torch", "lmcache", "vllm"))]
    assert engine
    assert all("extra ==" in need for need in engine)


@pytest.fixture(scope="module")
def installed_files(wheel_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths under site-packages, and `bin/NAME` for a command, once pip has installed the wheel."""
    target = tmp_path_factory.mktemp("site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    wheel = str(next(wheel_folder.glob("*.whl")))
    subprocess.run([*pip, *options, wheel], check=True, capture_output=True)
    return {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["lmcache", "torch", "vllm"])
def test_installed_beside_an_engine_package_it_shares_no_path(
    name: str, installed_files: set[str]
) -> None:
    try:
        files = metadata.files(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert files, f"{name} was installed without a RECORD: nothing to compare"
    assert "bin/stallscope" in installed_files
    assert installed_files.isdisjoint(str(path).removeprefix("../../../") for path in files)
    # A room is an import name: a package of that name, whatever its files, would shadow ours.
    tops = {path.parts[0] for path in files}
    assert tops.isdisjoint({*ROOMS, *(f"{room}.py" for room in ROOMS)})


def test_no_installed_distribution_claims_a_room() -> None:
    owners = metadata.packages_distributions()
    assert {room: set(owners.get(room, [])) - {"stallscope"} for room in ROOMS} == {
        room: set() for room in ROOMS
    }
