"""`diagnose --logs` and `--stacks`: findings from a log alone, and a finding weighed by stacks."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from detectors import thresholds as t
from exporters.readers.pages import PageFolder
from runbooks.cli import exit_codes
from tests.detectors.stock_rank import LOOKUP_SECONDS
from tests.runbooks.command_line import COMMAND, ROOT, environment, stallscope
from tests.runbooks.test_client_faults import again, rank

LOGS = Path(__file__).parents[1] / "exporters" / "logs"
VLLM = LOGS / "vllm-0.32.0.log"


def test_a_log_alone_is_judged():
    run = stallscope("diagnose", "--logs", VLLM, "--json")
    told = json.loads(run.out)
    assert run.code == exit_codes.CRITICAL
    assert {"wrong-collective-group", "degraded-engine"} <= {f["id"] for f in told["findings"]}
    assert told["unseen"] == []
    assert {
        key: value
        for count in told["logs"]
        if count["kind"] == "wrong_group"
        for key, value in count.items()
        if key in ("kind", "count")
    } == {"kind": "wrong_group", "count": 1}
    text = stallscope("diagnose", "--logs", VLLM).out
    assert "\nlog      worker_died once by EngineCore (pid 12516), 2026-12-01 " in text


def test_a_log_from_standard_input_is_read_once_and_to_its_end():
    done = subprocess.run(
        [*COMMAND, "diagnose", "--logs", "-", "--json"],
        input=VLLM.read_bytes(),
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (exit_codes.CRITICAL, b"")
    assert {count["source"] for count in told["logs"]} == {"stdin"}
    assert [c["count"] for c in told["logs"] if c["kind"] == "double_unpin"] == [2]


def test_a_quiet_log_is_nothing_found_and_no_such_log_is_unseen(tmp_path):
    (tmp_path / "log").write_text(VLLM.read_text().splitlines()[0])
    run = stallscope("diagnose", "--logs", tmp_path / "log")
    assert (run.code, run.line()) == (exit_codes.OK, "nothing found  1 log")
    (tmp_path / "log").write_text("another tool's words\n")
    run = stallscope("diagnose", "--logs", tmp_path / "log")
    assert run.code == exit_codes.UNSEEN and "kubectl logs" in run.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--logs", "missing.log"], "no file missing.log"),
        (["--logs", "/"], "is a folder"),
        (["--logs", "/dev/zero"], "is a device"),
        (["--logs", "-", "--watch"], "--logs FILE"),
        (["--stacks", "--valkey", "redis://x:1"], "needs --from PAGES_DIR"),
        (["--stacks", "--watch", "--from", "."], "looks once"),
    ],
)
def test_usage_is_one_line(arguments, says):
    run = stallscope("diagnose", *arguments)
    assert run.code == exit_codes.USAGE
    assert says in run.line()


def _confidences(finding: str, *arguments: str | Path) -> list[float]:
    """Without and with stacks, and what the stack says where it was read."""
    found = []
    for more in ((), ("--stacks",)):
        told = json.loads(stallscope("diagnose", "--json", *arguments, *more).out)
        found.append(next((f for f in told["findings"] if f["id"] == finding), None))
    if None in found:
        return []
    assert "waits inside" in found[1]["evidence"][-1]["text"]
    return [item["confidence"] for item in found]


@pytest.mark.soak
@pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
@again
def test_a_lost_completion_is_surer_by_the_stack_of_its_lookup(tmp_path, version):
    with rank("lost-completion", tmp_path, version) as of:
        of.begin()
        time.sleep(t.STUCK_TIMEOUTS * LOOKUP_SECONDS + 3)
        plain, weighed = _confidences("stuck-lookup", "--from", of.pages, "--valkey", of.url)
    assert weighed > plain


@pytest.mark.soak
def test_a_wedged_connection_is_surer_by_the_stack_of_its_load(tmp_path):
    """In the lab, whose loads wait 10 s: time for both looks before they are given up."""
    command = ("lab", "run", "--ranks", "3", "--incident", "missing-key", "--seconds", "60")
    lab = subprocess.Popen(
        [*COMMAND, *command, "--pages", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 90
        confidences: list[float] = []
        while not confidences and time.monotonic() < until:
            url = _shard_of(tmp_path)
            if url:
                confidences = _confidences("wedged-connection", "--from", tmp_path, "--valkey", url)
            time.sleep(0.5)
    finally:
        lab.terminate()
        lab.wait()
    plain, weighed = confidences
    assert weighed > plain


def _shard_of(folder: Path) -> str:
    """The shard that the pages name, "" while there are none."""
    pages = PageFolder(folder)
    try:
        named = [p.process.info.get("shard_url") for p in pages.read(time.monotonic_ns()).pages]
    finally:
        pages.close()
    return next((str(url).replace("resp://", "redis://") for url in named if url), "")
