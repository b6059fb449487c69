"""The root command: what it lists, what it loads, and how each way of failing ends."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib

import pytest

from runbooks.cli import commands, exit_codes, main, parser
from tests.runbooks.command_line import COMMAND, ROOT, environment, stallscope


class _Raising:
    """A command whose run ends in the given exception."""

    name = "raising"
    help = "raises"
    group = "now"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true")

    def run(self, args: argparse.Namespace) -> int:
        raise self.error


@pytest.fixture
def raising(monkeypatch):
    """Registers a command that raises."""

    def register(error):
        monkeypatch.setattr(commands, "targets", lambda: {"raising": "x:COMMAND"})
        monkeypatch.setattr(commands, "load", lambda target: _Raising(error))

    return register


def test_help_groups_commands_by_moment_within_80_columns():
    run = stallscope("--help")
    assert run.code == exit_codes.OK
    lines = run.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "now, while it is happening" in lines
    assert "set up, so that it can be seen" in lines
    assert lines.index("now, while it is happening") < lines.index("set up, so that it can be seen")
    assert [line for line in lines if line.startswith("  diagnose ")]
    assert "Traceback" not in run.out


def test_root_help_imports_nothing_heavy():
    code = (
        "import sys; from runbooks.cli.main import main; main(['--help']);"
        "print([m for m in sys.modules if m.split('.')[0] in"
        " {'torch', 'lmcache', 'vllm', 'numpy', 'rich', 'redis', 'prometheus_client'}],"
        " file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert run.stderr.strip() == "[]"


def test_an_uninstalled_checkout_knows_its_commands(monkeypatch):
    monkeypatch.setattr(commands.metadata, "entry_points", lambda group: [])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert commands.targets() == project["entry-points"]["stallscope.commands"]
    assert commands.load(commands.targets()["diagnose"]).name == "diagnose"


@pytest.mark.parametrize("name", sorted(commands.targets()))
def test_each_command_keeps_the_protocol(name):
    command = commands.load(commands.targets()[name])
    assert command.name == name
    assert command.group in commands.GROUPS
    assert command.help and not command.help.endswith(".")
    run = stallscope(name, "--help")
    assert run.code == exit_codes.OK
    assert "--json" in run.out
    assert f"stallscope {name}" in run.out.partition("examples")[2]
    is_ours = commands.targets()[name].startswith("runbooks.")
    told = run.out if is_ours else run.out.partition("examples")[0]  # another room's own words
    assert max(map(len, told.splitlines())) <= 80


def test_version():
    assert stallscope("--version").out.startswith("stallscope ")
    assert json.loads(stallscope("--version", "--json").out)["version"]


def test_no_command_prints_the_help_and_is_a_usage_error():
    run = stallscope()
    assert (run.code, run.out) == (exit_codes.USAGE, "")
    assert "usage: stallscope COMMAND" in run.err


def test_the_list_of_commands_as_json():
    assert "diagnose" in json.loads(stallscope("--json").out)["commands"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagnos"], "did you mean diagnose?"),
        (["Runbok"], "did you mean runbook?"),
        (["qqqq"], "see stallscope --help"),
        (["--verson"], "--verson"),
        (["diagnose", "--wach"], "did you mean --watch?"),
        (["diagnose", "--from"], "expected one argument"),
        (["diagnose", "extra"], "extra"),
        (["runbook", "stragler-rank"], "did you mean straggler-rank?"),
        (["runbook", "qqqq"], "straggler-rank, stuck-lookup"),
    ],
)
def test_usage_errors_are_one_line_and_exit_64(arguments, says):
    run = stallscope(*arguments)
    assert run.code == exit_codes.USAGE
    assert run.out == ""
    assert says in run.line()


def test_a_wrong_choice_of_a_subcommand_is_suggested(capsys):
    root = parser.Parser(prog="stallscope lab")
    root.add_subparsers().add_parser("demo")
    with pytest.raises(SystemExit) as stop:
        root.parse_args(["dmo"])
    assert stop.value.code == exit_codes.USAGE
    assert "did you mean demo?" in capsys.readouterr().err


def test_an_internal_error_is_one_line_that_names_the_flag(raising, capsys):
    raising(RuntimeError("two\nlines"))
    assert main.main(["raising"]) == exit_codes.INTERNAL
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "RuntimeError: two lines" in error
    assert "STALLSCOPE_TRACEBACK=1" in error


def test_the_flag_shows_where(raising, capsys, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_TRACEBACK", "1")
    raising(RuntimeError("boom"))
    assert main.main(["raising"]) == exit_codes.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_extra_is_named(raising, capsys):
    raising(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert main.main(["raising"]) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "needs the Python package torch" in error
    assert error.count("\n") == 1


def test_ctrl_c_is_130_and_quiet(raising, capsys):
    raising(KeyboardInterrupt())
    assert main.main(["raising"]) == exit_codes.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_quiet():
    line = " ".join([*COMMAND, "runbook", "straggler-rank", "|", "true"])
    for _ in range(5):
        run = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, env=environment(), check=False
        )
        assert run.stderr == ""


def _shell(redirection: str) -> subprocess.CompletedProcess[str]:
    line = " ".join([*COMMAND, "runbook", "straggler-rank", redirection])
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(), check=False
    )


def test_a_closed_standard_output_is_quiet():
    run = _shell(">&-")
    assert (run.returncode, run.stdout, run.stderr) == (exit_codes.OK, "", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_line():
    run = _shell(">/dev/full")
    assert run.returncode == exit_codes.INTERNAL
    assert run.stderr.count("\n") == 1
    assert "No space left" in run.stderr


def test_a_c_locale_does_not_stop_it():
    run = stallscope("runbook", "straggler-rank", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert run.code == exit_codes.OK
