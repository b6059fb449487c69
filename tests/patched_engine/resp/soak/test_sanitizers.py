"""The compiled core's tests once more, built to stop at any memory error or race."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.layout import ROOT

# A fork without exec, a second old server and the latency limit are not for an instrumented build.
CHOSEN = "compiled and not forked and not 9.0.0 and not missing and not build"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("flags", "libraries"),
    [("address,undefined", ("libasan.so", "libubsan.so")), ("thread", ("libtsan.so",))],
)
def test_no_memory_error_and_no_race(
    flags: str, libraries: tuple[str, ...], tmp_path: Path
) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc here")
    compiler = tmp_path / "cc"
    compiler.write_text(
        f'#!/bin/sh\nexec {gcc} -fsanitize={flags} -fno-sanitize-recover=undefined "$@"\n'
    )
    compiler.chmod(0o700)
    environment = {**os.environ, "CC": str(compiler), "STALLSCOPE_CACHE_DIR": str(tmp_path / "c")}
    build = "from patched_engine.resp import build; build.library()"
    subprocess.run([sys.executable, "-c", build], env=environment, cwd=ROOT, check=True)
    found = [
        subprocess.run(
            [gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in libraries
    ]
    if not all(os.path.isabs(path) for path in found):
        pytest.skip(f"gcc's {' and '.join(libraries)} are not installed")
    environment |= {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/patched_engine/resp", "-q", "-s", "-k", CHOSEN],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert "passed" in done.stdout, done.stdout[-2000:]
    assert (done.returncode, "Sanitizer" in done.stderr + done.stdout) == (0, False), (
        done.stdout[-3000:] + done.stderr[-3000:]
    )
