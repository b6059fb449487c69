"""The compiled core: built privately, refused where others could write, and named when missing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from patched_engine.resp import BuildError, RespClient, build, status
from patched_engine.resp.results import Outcome


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(build.CACHE_VARIABLE, str(folder))
    return folder


def test_built_once_into_a_private_folder(cache: Path) -> None:
    made = build.library()
    first = made.stat()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.st_mode) == 0o600
    assert build.library() == made
    assert made.stat().st_ino == first.st_ino
    assert [path.name for path in cache.iterdir()] == [made.name]


def test_a_library_that_others_can_write_is_built_anew(cache: Path) -> None:
    made = build.library()
    made.write_bytes(b"theirs")
    made.chmod(0o666)
    assert build.library() == made
    assert made.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(BuildError, match="others can write there"):
        build.library()


def test_a_link_in_place_of_the_folder_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="not a folder of this user"):
        build.library()


def test_without_a_compiler_the_pure_engine_serves_and_says_why(cache: Path) -> None:
    script = (
        "from patched_engine.resp import RespClient, status\n"
        "print(status())\n"
        "client = RespClient('resp://127.0.0.1:1')\n"
        "print(client.status.name, client.exists(['a'])[0].outcome.name)\n"
        "try: RespClient('resp://127.0.0.1:1', engine='compiled')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PATH": "", "CC": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, second, third = done.stdout.splitlines()
    assert "name='pure'" in first
    assert "no C compiler" in first
    assert second == "pure UNREACHABLE"
    assert third.startswith("BuildError no C compiler")


def test_a_compiler_that_fails_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'core.c:1: error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv(build.COMPILER_VARIABLE, str(broken))
    with pytest.raises(BuildError, match="error: no such thing") as caught:
        build.library()
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("choice", ["fast", "COMPILED"])
def test_an_engine_that_does_not_exist(choice: str) -> None:
    with pytest.raises(ValueError, match="give one of auto, compiled, pure"):
        status(choice)


def test_tls_is_the_pure_engines_and_that_is_said() -> None:
    assert status(tls=True).name == "pure"
    assert "TLS" in status(tls=True).reason
    with pytest.raises(BuildError, match="has no TLS"):
        RespClient("resps://127.0.0.1:1", engine="compiled")


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_RESP_ENGINE", "pure")
    assert (status().name, status().reason) == ("pure", "asked for")
    with RespClient("resp://127.0.0.1:1") as client:
        assert client.status.name == "pure"
        assert client.exists(["a"])[0].outcome is Outcome.UNREACHABLE
