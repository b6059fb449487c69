"""What doctor says of this environment, of broken ones, and of engines that run."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from runbooks import checkup
from runbooks.cli import exit_codes
from runbooks.cli.doctor_text import doctor_text
from runbooks.cli.terminal import Style
from tests.runbooks.command_line import ROOT, environment, stallscope

SITE = Path(sysconfig.get_path("purelib"))
TARGETS = {"own": "patched_engine.doctor:examine"}
GIVEN = ("--timeout", "90")  # a machine that others use imports LMCache in more than the default
# Where LMCache's manager does not import (it needs a web server's package), its patch is unseen.
MAY_BE_UNSEEN = {"refusals", "longest-prompt"}

ENGINE = """
import sys, time
import patched_engine
patched_engine.install()
from patched_engine import recorder
import lmcache.v1.storage_backend.remote_backend, lmcache.v1.storage_backend
from patched_engine.resp.calls import RespCalls
from patched_engine.resp import RespClient, Deadlines
recorder.identify("worker", rank=2, world_size=4, engine_id="engine-d")
bounds = Deadlines()
calls = RespCalls(RespClient("resp://127.0.0.1:1"), bounds, bounds, bounds)
time.sleep(1.2)  # the heartbeat lists what was attached since
print("ready", flush=True)
time.sleep(60)
"""


def doctor(*arguments, **changes):
    given = () if {"--from", "--timeout"} & set(arguments) else GIVEN
    run = stallscope("doctor", "--json", *given, *arguments, timeout_seconds=120, **changes)
    found = json.loads(run.out)
    rows = {row["name"]: row for section in found["sections"] for row in section["rows"]}
    return run, found, rows


def fake_lmcache(folder: Path, text: str) -> dict[str, str]:
    """An lmcache that comes before the real one."""
    (folder / "lmcache").mkdir()
    (folder / "lmcache" / "__init__.py").write_text(text)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
def test_each_patch_is_shown_as_this_environment_would_have_it(version):
    pytest.importorskip("lmcache")
    from patched_engine.patches import PATCHES

    second = Path(sys.prefix) / f"lmcache-{version}"
    path = f"{second}:{ROOT}" if version != "0.5.5" else str(ROOT)
    if version != "0.5.5" and not second.is_dir():
        pytest.skip(f"LMCache {version} is not beside the environment (make setup)")
    run, _, rows = doctor(PYTHONPATH=path, STALLSCOPE_PATCHES="-executor,exectuor")
    assert rows["lmcache"]["state"] == version
    for patch in PATCHES:
        row = rows[patch.name]
        assert row["touches"] == list(patch.touches) and row["upstream"] == patch.upstream
        expected = "off" if patch.name == "executor" else "applied"
        if patch.name in MAY_BE_UNSEEN and row["state"] == "unseen":
            assert "cannot be imported" in row["why"]
        else:
            assert row["state"] == expected, row
    assert rows["executor"]["why"] == "switched off by STALLSCOPE_PATCHES"
    assert "no patch 'exectuor'" in rows["STALLSCOPE_PATCHES"]["why"]
    assert rows["LMCache's MP mode"]["state"] == "unpatched"
    assert rows["RESP client"]["state"] in ("compiled", "pure")
    assert rows["LMCacheEngine.retrieve"]["state"] == "attached"
    assert run.code == exit_codes.WARNING  # the misspelt word


def test_as_text_it_fits_a_terminal_and_says_what_is_off_and_unpatched():
    pytest.importorskip("lmcache")
    run = stallscope(
        "doctor",
        *GIVEN,
        "--all",
        timeout_seconds=120,
        STALLSCOPE_RESP_ENGINE="pure",
        VLLM_PLUGINS="other",
    )
    lines = run.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  RESP client          pure       asked for" in lines
    assert "LMCache's MP mode" in run.out and "unpatched" in run.out
    assert "VLLM_PLUGINS='other' leaves it out" in run.out
    assert run.code == exit_codes.WARNING
    if run.seconds > 3:
        assert "importing LMCache with the patches on" in run.err


def test_a_base_install_has_nothing_to_patch_and_says_so(tmp_path):
    for path in SITE.iterdir():
        name = path.name.lower()
        if not name.startswith(("lmcache", "torch", "vllm", "__editable__", "_stallscope")):
            (tmp_path / path.name).symlink_to(path)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}];"
        "from runbooks.cli.main import main;"
        "sys.exit(main(['doctor', '--json', '--timeout', '90']))"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=""),
        check=False,
    )
    assert run.returncode == exit_codes.UNSEEN, run.stderr
    found = json.loads(run.stdout)["sections"]
    rows = {row["name"]: row for section in found for row in section["rows"]}
    assert rows["lmcache"]["state"] == "not installed"
    assert "where the engine runs" in rows["lmcache"]["why"]
    assert rows["rank-url"]["state"] == "unseen"
    assert rows["rank-url"]["why"] == "lmcache is not installed here"


def test_an_lmcache_that_does_not_import_is_unseen_with_its_reason(tmp_path):
    broken = fake_lmcache(tmp_path, "raise RuntimeError('libcudart.so.13:\\n no such file')")
    run, _, rows = doctor(**broken)
    assert run.code == exit_codes.UNSEEN
    assert rows["resp-backend"]["state"] == "unseen"
    assert "RuntimeError: libcudart.so.13: no such file" in rows["resp-backend"]["why"]
    assert rows["RESP client"]["state"] in ("compiled", "pure")  # needs no LMCache


@pytest.mark.parametrize(
    ("text", "said"),
    [("import os; os.abort()", "ended in signal 6"), ("import os; os._exit(3)", "ended in an")],
)
def test_an_lmcache_that_ends_the_process_does_not_end_the_command(tmp_path, text, said):
    run, _, rows = doctor(**fake_lmcache(tmp_path, text))
    assert run.code == exit_codes.UNSEEN
    assert said in rows["all of them"]["why"]


def test_an_import_that_hangs_is_given_up_and_its_process_ended(tmp_path):
    slow = fake_lmcache(tmp_path, "import time; time.sleep(60)")
    run, _, rows = doctor("--timeout", "3", **slow)
    assert run.seconds < 20
    assert run.code == exit_codes.UNSEEN
    assert "not imported within 3 s: give --timeout" in rows["all of them"]["why"]
    assert "importing LMCache" in run.err
    marks = str(tmp_path)
    assert not [p for p in psutil.process_iter(["cmdline"]) if marks in str(p.info["cmdline"])]


def test_an_unknown_version_is_refused(tmp_path):
    pytest.importorskip("lmcache")
    facts = tmp_path / "lmcache-0.6.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.6.0\n")
    run, _, rows = doctor(PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert run.code == exit_codes.WARNING
    assert rows["resp-backend"]["state"] == "refused"
    assert rows["resp-backend"]["why"] == "LMCache 0.6.0 is not known; 0.5.5 and 0.5.6 are"


def test_without_a_compiler_the_fallback_is_named(tmp_path):
    broken = fake_lmcache(tmp_path, "raise ImportError('not of interest')")
    run, _, rows = doctor(**broken, PATH=str(tmp_path), STALLSCOPE_CACHE_DIR=str(tmp_path / "new"))
    assert run.code == exit_codes.WARNING
    assert rows["RESP client"]["state"] == "pure"
    assert "no C compiler" in rows["RESP client"]["why"]


def test_running_engines_show_what_they_have(tmp_path):
    pytest.importorskip("lmcache")
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE],
        env=environment(
            STALLSCOPE_DIR=str(tmp_path),
            STALLSCOPE_PATCHES="-executor",
            LMCACHE_LOG_LEVEL="ERROR",
            LMCACHE_TRACK_USAGE="false",
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        run, found, rows = doctor("--from", tmp_path)
        assert run.code == exit_codes.OK, run.out
        assert found["sections"][0]["title"] == f"engine-d worker rank 2, pid {process.pid}, alive"
        assert rows["resp-backend"]["state"] == "applied"
        assert rows["executor"]["state"] == "off"
        assert rows["refusals"]["state"] == "waiting"
        assert rows["RESP client"]["state"] in ("compiled", "pure")
        assert rows["hooks"]["state"].endswith("attached")
    finally:
        process.kill()
        process.communicate()
    _, _, rows = doctor("--from", tmp_path)
    assert rows["process"]["state"] == "dead"


def test_a_refusal_in_a_running_engine_is_a_warning_and_no_page_is_unseen(tmp_path):
    from patched_engine.page import Page

    run, _, rows = doctor("--from", tmp_path)
    assert run.code == exit_codes.UNSEEN
    facts = {"engine_id": "e", "roles": ["worker"], "rank": 0, "hooks": {"f": "failed: no"}}
    page = Page.create(
        tmp_path, {**facts, "patches": {"rank-url": "refused: \x1b[31mf is not there"}}
    )
    try:
        run, _, rows = doctor("--from", tmp_path)
        assert run.code == exit_codes.WARNING
        assert rows["rank-url"]["why"] == "?[31mf is not there"
        assert rows["f"]["state"] == "failed"
        page.set_info({"patches": {}})
        assert doctor("--from", tmp_path)[2]["patches"]["state"] == "unseen"
    finally:
        page.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timeout", "0"], "--timeout 0: give seconds above 0"),
        (["--timeout", "nan"], "give seconds above 0"),
        (["--from", ""], "--from is empty"),
        (["--from", "redis://a:1"], "is a Valkey server"),
        (["--al"], "did you mean --all?"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments, said):
    run = stallscope("doctor", *arguments)
    assert run.code == exit_codes.USAGE and said in run.line()


def test_a_provider_that_fails_is_unseen(monkeypatch):
    def failing(say, seconds):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("patched_engine.doctor.examine", failing)
    (section,) = checkup.ask(TARGETS, print, 1.0)
    assert section.rows[0].level == "unseen" and "two lines" in section.rows[0].why
    assert checkup.ask({}, print, 1.0)[0].rows[0].level == "unseen"


def test_by_default_it_takes_less_than_15_s():
    from runbooks.cli.doctor import DEFAULT_SECONDS

    assert DEFAULT_SECONDS <= 14


def test_a_warning_comes_before_what_is_unseen_and_a_note_is_well():
    def level(*levels):
        rows = tuple(checkup.Row(str(i), "s", one) for i, one in enumerate(levels))
        return checkup.exit_level([checkup.Section("t", rows)])

    assert level("ok", "unseen", "warning") == "warning"
    assert level("ok", "unseen", "note") == "unseen"
    assert level("ok", "note") == "ok"
    text = doctor_text([checkup.Section("t", ())], Style(80, False), everything=False)
    assert text.splitlines()[-1] == "all is well"


def test_looking_neither_writes_a_page_nor_leaves_a_folder(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    stallscope(
        "doctor", *GIVEN, timeout_seconds=120, STALLSCOPE_DIR=str(pages), TMPDIR=str(tmp_path)
    )
    assert list(pages.iterdir()) == []
    assert [p for p in tmp_path.iterdir() if p.name.startswith("stallscope-doctor")] == []
