"""atheris on the parser for 10 minutes, from the kept corpus; the corpus itself every time."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patched_engine.resp.reader_cases import CASES
from tests.patched_engine.resp.soak.fuzz_parser import one_input
from tests.patched_engine.resp.soak.record import record

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
RESULT = HERE / "fuzz_parser.json"
KEPT_FILES = 300
SECONDS = int(os.environ.get("STALLSCOPE_FUZZ_SECONDS", "600"))


def seeds() -> list[bytes]:
    """The reader cases in small and large pieces, with and without a value expected."""
    return [
        bytes((piece, expected)) + reply
        for _, reply, _ in CASES
        for piece, expected in ((0, 0), (69, 5))
    ]


def test_the_corpus_and_the_reader_cases_hold() -> None:
    kept = sorted(CORPUS.iterdir())
    assert kept, "the corpus is gone"
    assert sum(path.stat().st_size for path in kept) < 200_000
    for data in [*(path.read_bytes() for path in kept), *seeds()]:
        one_input(data)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_atheris_finds_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not here: make soak installs it, on x86-64")
    corpus = tmp_path / "corpus"
    shutil.copytree(CORPUS, corpus)
    for index, data in enumerate(seeds()):
        (corpus / f"case-{index}").write_bytes(data)
    target = [sys.executable, "-m", "tests.patched_engine.resp.soak.fuzz_parser"]
    options = [f"-max_total_time={SECONDS}", "-max_len=400", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [*target, str(corpus), *options, "-print_final_stats=1"],
        capture_output=True,
        text=True,
        timeout=SECONDS + 200,
        check=False,
    )
    crashes = [path.read_bytes() for path in tmp_path.glob("crash-*")]
    assert (done.returncode, crashes) == (0, []), done.stderr[-2000:]
    executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    # libFuzzer keeps an input only for new coverage, and a smaller one in its place.
    found = [path for path in corpus.iterdir() if not path.name.startswith("case-")]
    assert found
    for old in CORPUS.iterdir():
        old.unlink()
    for path in sorted(found, key=lambda p: p.stat().st_size)[:KEPT_FILES]:
        shutil.copy(path, CORPUS / path.name[:16])
    figures = {
        "seconds": SECONDS,
        "inputs": int(executed[1]) if executed else 0,
        "crashes": 0,
        "corpus_files": len(list(CORPUS.iterdir())),
    }
    record(RESULT, "parser", figures, atheris=importlib.metadata.version("atheris"))
