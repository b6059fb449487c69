"""The pages, the rules and the command stand or fall together."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess

import pytest

from dashboards.pages import ALERT_PAGES
from detectors import ALL_RULES
from detectors.profile_rules import PROFILE_RULES
from runbooks.cli import commands, exit_codes
from runbooks.library import SECTIONS, load_page, page_names
from runbooks.steps import without_comments
from tests.runbooks.command_line import COMMAND, environment, stallscope

# What a node or an engine container has; a page may name nothing else.
PROGRAMS = {
    *("py-spy", "nvidia-smi", "kubectl", "stallscope", "grep", "cat", "tr", "ps", "kill"),
    *("valkey-cli", "curl"),
}
VARIABLES = {
    *("PID", "RANK", "POD", "NODE", "STALLSCOPE_DIR", "TRACER_PID"),
    *("PROFILE", "BEFORE", "AFTER", "EXPORTER_URL"),
    *("SHARD_HOST", "SHARD_PORT", "KEY"),
}


def test_every_rule_has_a_page_and_every_page_a_rule():
    named = {rule.name for rule in (*ALL_RULES, *PROFILE_RULES)}
    assert set(page_names()) == named | ALERT_PAGES


@pytest.mark.parametrize("name", page_names())
def test_each_page_has_the_sections_in_order(name):
    page = load_page(name)
    assert page.text.startswith(f"# {name}: ")
    assert tuple(page.sections) == SECTIONS
    assert all(page.sections[section].strip() for section in SECTIONS)
    assert max(map(len, without_comments(page.text).splitlines())) <= 80


@pytest.mark.parametrize("name", page_names())
def test_a_page_names_only_commands_and_variables_that_exist(name):
    page = load_page(name)
    steps = page.commands("Diagnosis") + page.commands("Mitigation")
    assert page.commands("Diagnosis")
    for step in steps:
        for part in re.sub(r"'[^']*'", "''", step).split("|"):
            word = part.split()[0]
            assert word in PROGRAMS or "=" in word, step
        assert set(re.findall(r"\$([A-Z_]+)", step)) <= VARIABLES, step
    for used in re.findall(r"stallscope (\w[\w-]*)", page.text):
        assert used in commands.targets() or used in {"diagnose", "counts", "reads"}, used
    for linked in re.findall(r"stallscope runbook ([\w-]+)", page.text):
        assert linked in page_names()


@pytest.mark.parametrize("name", page_names())
def test_options_of_stallscope_in_a_page_are_real(name):
    for step in load_page(name).commands("Diagnosis") + load_page(name).commands("Mitigation"):
        if step.startswith("stallscope "):
            used = re.findall(r"--[\w-]+", step)
            known = stallscope(step.split()[1], "--help").out
            assert all(option in known for option in used), step


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps here")
def test_the_first_steps_run_as_they_are_written():
    values = {"PID": str(os.getpid())}
    for name in ("store-skew", "rank-silent"):
        step = load_page(name).first_step(values)
        assert step is not None
        run = subprocess.run(
            ["sh", "-c", step],
            capture_output=True,
            text=True,
            check=False,
            env=environment(LMCACHE_EXTRA_CONFIG="{}"),
        )
        assert run.stderr == "", step


def test_a_step_whose_variable_is_unknown_is_not_offered():
    assert load_page("straggler-rank").first_step({}) is None
    assert load_page("straggler-rank").first_step({"PID": "7"}) == "py-spy dump --pid 7"


def test_list():
    run = stallscope("runbook")
    assert run.code == exit_codes.OK
    assert all(any(line.startswith(name) for line in run.out.splitlines()) for name in page_names())
    assert max(map(len, run.out.splitlines())) <= 80
    listed = json.loads(stallscope("runbook", "--json").out)
    assert [row["name"] for row in listed["pages"]] == list(page_names())


@pytest.mark.parametrize("name", page_names())
def test_piped_a_page_is_its_markdown(name):
    run = stallscope("runbook", name)
    assert run.code == exit_codes.OK
    assert run.out == without_comments(load_page(name).text)
    assert "<!--" not in run.out


def test_json_of_a_page_has_its_sections_and_commands():
    page = json.loads(stallscope("runbook", "straggler-rank", "--json").out)
    assert page["schema"] == 1
    assert [section["name"] for section in page["sections"]] == list(SECTIONS)
    diagnosis = page["sections"][SECTIONS.index("Diagnosis")]
    assert diagnosis["commands"][0] == "py-spy dump --pid $PID"


def _on_a_terminal(*arguments: str, **changes: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=theirs, stderr=theirs, env=environment(**changes)
    ):
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            text += part
    os.close(ours)
    return text.decode()


def test_on_a_terminal_it_is_rendered_and_no_color_is_kept():
    rendered = _on_a_terminal("runbook", "rank-silent", TERM="xterm-256color", COLUMNS="80")
    assert "\x1b[" in rendered
    assert "## Meaning" not in rendered
    plain = _on_a_terminal("runbook", "rank-silent", TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[" not in plain
    assert "## Meaning" in plain
