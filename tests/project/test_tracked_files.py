"""What is published must make sense anywhere: no machine's paths, no registry's hosts."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.project.layout import ROOT

# Each pattern is written so that it does not match itself.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(work|farm|root|tmp/w)/",
    "a package registry's host": (
        r"pypi\.org|files\.pythonhosted|test\.pypi|registry\.npmjs|deb\.debian\.org"
        r"|proxy\.golang|index\.crates\.io"
    ),
}


def tracked() -> list[Path]:
    # A clone made by another user than the one who tests is not "dubious" here: it is only read.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout: what is tracked cannot be told")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_names(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what].encode())
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.decode(errors='replace').strip()[:120]}"
        for path in tracked()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of one machine", "open('/" + "work/main/x')"),
        ("a package registry's host", "https://" + "pypi" + ".org/simple"),
    ],
)
def test_the_patterns_match_what_they_forbid(what: str, text: str) -> None:
    assert re.search(FORBIDDEN[what], text)


# A command as the pages write one: in backquotes or at the start of a line of a code block.
COMMAND = re.compile(r"(?:`|^)make ([a-z][\w-]*)", re.MULTILINE)


def test_every_command_the_pages_name_is_a_make_target() -> None:
    targets = set(re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        if (ROOT / page).exists():
            named = set(COMMAND.findall((ROOT / page).read_text()))
            known = {n for n in named if n in targets or n.startswith("bench-")}
            assert named == known, page
