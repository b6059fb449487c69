"""The command line: one clear line and the right exit code for what cannot be run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from lab import demo, run
from lab.cli import COMMAND
from lab.settings import Settings, SettingsError
from tests.lab.runs import ROOT


def lab(*arguments: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runbooks.cli.main", "lab", *arguments],
        env=os.environ | {"TMPDIR": str(temporary)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--ranks", "many"), "--ranks"),
        (("run", "--incident", "slow-rnak"), "did you mean slow-rank?"),
        (("run", "--prompt-tokens", "few"), "--prompt-tokens must be LOW-HIGH"),
        (("run", "--incident", "rank0-store", "--incident-after", "5"), "--incident-after"),
        (("run", "--prompt-tokens", "5"), "--prompt-tokens must be between 256"),
        (("run", "--pages", "/proc/x"), "--pages /proc/x: "),
        (("run", "--report", "/nowhere/run.html"), "there is no folder /nowhere"),
        (("run", "--report", "/"), "a folder"),
        (("run", "--incident", "lost-completion", "--async"), "does not go with --async"),
        (("walk",), "walk"),
        ((), "required"),
    ],
)
def test_what_cannot_be_run(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    answer = lab(*arguments, temporary=tmp_path)
    assert answer.returncode == 64
    assert said in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert answer.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [(), ("run",), ("demo",)])
def test_help_has_examples(arguments: tuple[str, ...], tmp_path: Path) -> None:
    answer = lab(*arguments, "--help", temporary=tmp_path)
    assert answer.returncode == 0
    assert "stallscope lab run --incident slow-rank" in answer.stdout


def test_the_command_says_what_the_root_needs() -> None:
    assert (COMMAND.name, COMMAND.group) == ("lab", "set up")
    assert COMMAND.help


def test_parsing_needs_no_engine() -> None:
    """`stallscope --help` lists this command where neither torch nor LMCache is."""
    probe = (
        "import argparse, sys; from lab.cli import COMMAND; "
        "COMMAND.add_arguments(argparse.ArgumentParser()); "
        "print([m for m in ('torch', 'lmcache', 'redis', 'rich') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", probe],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["torch", "lmcache"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    with pytest.raises(SettingsError, match=r"pip install 'stallscope\[lab\]'"):
        run._environment(Settings())


def test_an_absent_lmcache_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    with pytest.raises(SettingsError, match=r"pip install --no-deps --target"):
        run._environment(Settings(lmcache="0.5.6"))


def test_the_demo_is_the_three_runs() -> None:
    assert [name for name, _ in demo.RUNS] == ["", "rank0-store", "slow-rank"]
    assert sum(seconds for _, seconds in demo.RUNS) < 120


def test_python_m_lab_works_without_the_root() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "lab", "run", "--ranks", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 64
