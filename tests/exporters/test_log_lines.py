"""The table of log lines against the texts in the installed releases of LMCache and vLLM."""

import ast
import functools
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from exporters.log_lines import KINDS, LINES, LogLine, find, is_known

ROOT = Path(__file__).parents[2]


def packages() -> dict[tuple[str, str], Path]:
    """The folders of the releases that are here, by (package, release)."""
    found = {}
    spec = find_spec("lmcache")
    if spec is not None and spec.origin is not None:
        found["lmcache", version("lmcache")] = Path(spec.origin).parent
    for info in ROOT.glob(".venv/lmcache-*/lmcache-*.dist-info"):
        found["lmcache", info.stem.partition("-")[2]] = info.parent / "lmcache"
    for info in ROOT.glob(".venv-vllm/lib/python3*/site-packages/vllm-*.dist-info"):
        release = info.name.removeprefix("vllm-").removesuffix(".dist-info")
        found["vllm", release.partition("+")[0]] = info.parent / "vllm"
    return found


PACKAGES = packages()


@functools.cache
def texts(path: Path) -> tuple[str, ...]:
    """Every string of a module as its messages read once the values are in them."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "7" for v in node.values]
            found.append("".join(str(part) for part in parts))
    return tuple(re.sub(r"%(?:\.\d)?[sdf]", "7", text) for text in found)


def modules(folder: Path, line: LogLine) -> list[Path]:
    """The modules whose loggers the entry is about."""
    first = folder / line.logger.partition(".")[2].replace(".", "/")
    found: list[Path] = []
    for path in first.parent.glob(f"{first.name}*"):
        found += path.rglob("*.py") if path.is_dir() else [path]
    return [path for path in found if path.suffix == ".py"]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.pattern.pattern)
def test_each_entry_is_a_text_of_the_releases_it_names(line: LogLine) -> None:
    here = [v for v in line.versions if (line.package, v) in PACKAGES]
    if not here:
        pytest.skip(f"{line.package} {' or '.join(line.versions)} is not installed here")
    for release in here:
        folder = PACKAGES[line.package, release]
        words = max(re.split(r"[^A-Za-z _/']+", line.pattern.pattern), key=len)
        candidates = [p for p in modules(folder, line) if words.split(" ")[-1] in p.read_text()]
        assert any(line.pattern.search(text) for p in candidates for text in texts(p)), release


def test_every_kind_is_of_some_line_and_every_line_of_a_kind() -> None:
    assert {line.kind for line in LINES} == set(KINDS)
    assert len(set(KINDS)) == len(KINDS)


def test_the_logger_decides_where_it_is_known() -> None:
    message = "Failed during post_init: no such server"
    assert find(message, "lmcache.v1.manager") == find(message)
    assert find(message, "vllm.v1.core.sched.scheduler") is None
    assert find(message, "someone.else") is None
    assert find("all is well") is None


def test_an_unknown_release_is_matched_against_all_that_were_read() -> None:
    versions = {"lmcache": "0.9.0"}
    assert find("Double unpin occurred somewhere.", versions=versions) is not None
    assert not is_known("lmcache", "0.9.0")
    assert is_known("lmcache", "0.5.5")


def test_a_long_hostile_line_costs_its_length() -> None:
    hostile = "Lookup results " * 20_000 + "Request failed to load 1" * 20_000
    assert find(hostile) is None
