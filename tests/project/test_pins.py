"""The pinned list is installed with --no-deps, so nothing but this notices a missing dependency."""

import platform
import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.layout import CONSTRAINTS, pyproject

PINS = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines())
PINNED = {canonicalize_name(name): version for name, version in PINS.items()}


# Debian 12's and 13's Python, and this one: some packages need more on one than on another.
PYTHONS = ("3.11.2", "3.13.5", platform.python_version())


def needed_by(requirements: list[str]) -> list[Requirement]:
    """What is needed without extras, on any of the Pythons a fresh machine may have."""
    environments = [
        {"extra": "", "python_full_version": full, "python_version": full.rpartition(".")[0]}
        for full in PYTHONS
    ]
    return [
        need
        for need in map(Requirement, requirements)
        if need.marker is None or any(map(need.marker.evaluate, environments))
    ]


def test_the_list_is_plain_sorted_and_exact() -> None:
    lines = CONSTRAINTS.read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert lines == sorted(lines, key=lambda line: line.upper())
    assert len(PINNED) == len(lines)


@pytest.mark.parametrize("name", sorted(PINNED))
def test_what_a_pinned_package_needs_is_pinned_and_fits(name: str) -> None:
    installed = metadata.distribution(name)
    assert installed.version.partition("+")[0] == PINNED[canonicalize_name(name)]
    if name in ("lmcache", "torch"):
        pytest.skip("lmcache-imports.txt stands for LMCache's list; torch brings its own")
    for need in needed_by(installed.requires or []):
        assert canonicalize_name(need.name) in PINNED, f"{name} needs {need}"
        assert need.specifier.contains(PINNED[canonicalize_name(need.name)]), f"{name} needs {need}"


def test_the_pins_satisfy_what_the_project_declares() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(need for needs in extras.values() for need in needs)]
    for need in map(Requirement, declared):
        if need.name != "stallscope":
            assert need.specifier.contains(PINNED[canonicalize_name(need.name)]), str(need)


def test_the_pins_respect_the_bounds_lmcache_states_for_what_we_install() -> None:
    for need in needed_by(metadata.requires("lmcache") or []):
        pin = PINNED.get(canonicalize_name(need.name))
        assert pin is None or need.specifier.contains(pin), f"lmcache needs {need}"
