"""Defaults from a file come after command line and environment; what is wrong is one line."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from runbooks.cli import commands, exit_codes
from tests.runbooks.command_line import stallscope


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


def seen(run):
    return [unseen["detail"] for unseen in json.loads(run.out)["unseen"]]


def test_the_file_is_the_last_to_be_asked(config, tmp_path):
    file = config(f'[diagnose]\nfrom = "{tmp_path}/file"\njson = true\n')
    run = stallscope("diagnose", STALLSCOPE_CONFIG=file)
    assert "file" in seen(run)[0]
    run = stallscope("diagnose", STALLSCOPE_CONFIG=file, STALLSCOPE_DIR=f"{tmp_path}/variable")
    assert "variable" in seen(run)[0]
    run = stallscope("diagnose", "--from", tmp_path / "given", STALLSCOPE_CONFIG=file)
    assert "given" in seen(run)[0]


def test_a_list_and_a_home(config, tmp_path):
    home = tmp_path / "home" / "stallscope"
    home.mkdir(parents=True)
    text = '[diagnose]\nvalkey = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]\njson = true\n'
    (home / "config.toml").write_text(text)
    run = stallscope("diagnose", XDG_CONFIG_HOME=str(home.parent))
    assert {unseen["source"] for unseen in json.loads(run.out)["unseen"]} == {
        "redis://127.0.0.1:1",
        "redis://127.0.0.1:2",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[diagnose", "is not TOML"),
        ('[diagnose]\nfrm = "x"', "has no option 'frm'; did you mean from?"),
        ('[diagnose]\nvalkey = "redis://h:1"', "give a list"),
        ('[diagnose]\nfrom = ["a"]', "give one value"),
        ('[diagnose]\nwatch = "yes"', "has no option"),
        ("diagnose = 1", "is no table"),
    ],
)
def test_what_is_wrong_is_said(config, text, says):
    run = stallscope("diagnose", STALLSCOPE_CONFIG=config(text))
    assert run.code == exit_codes.USAGE
    assert says in run.line()


def test_a_named_file_must_be_there(tmp_path):
    run = stallscope("diagnose", STALLSCOPE_CONFIG=str(tmp_path / "none"))
    assert (run.code, "there is no file" in run.line()) == (exit_codes.USAGE, True)


def test_completion_knows_every_command_and_option():
    words = json.loads(stallscope("completion", "bash", "--json").out)["commands"]
    assert set(words) == set(commands.targets())
    assert {"--from", "--valkey", "--watch"} <= set(words["diagnose"])
    assert {"run", "demo", "up", "--incident"} <= set(words["lab"])
    assert {"store-skew", "--run"} <= set(words["runbook"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (("stallscope", "diag"), ["diagnose"]),
        (("stallscope", "runbook", "store"), ["store-skew"]),
        (("stallscope", "diagnose", "--val"), ["--valkey"]),
    ],
)
def test_bash_completes(line, wanted):
    script = stallscope("completion", "bash").out
    words = " ".join(f"'{word}'" for word in line)
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _stallscope; echo ${{COMPREPLY[@]}}"
    run = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True, timeout=20
    )
    assert run.stdout.split() == wanted
    assert run.stderr == ""
