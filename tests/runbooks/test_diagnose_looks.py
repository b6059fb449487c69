"""`diagnose --logs` and `--stacks`: findings from a log alone, and a finding weighed by stacks."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from detectors import thresholds as t
from runbooks.cli import exit_codes
from tests.detectors.stock_rank import LOOKUP_SECONDS
from tests.runbooks.command_line import COMMAND, environment, stallscope
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
        (["--logs", "-", "--watch"], "--logs FILE"),
        (["--stacks", "--valkey", "redis://x:1"], "needs --from PAGES_DIR"),
        (["--stacks", "--watch", "--from", "."], "looks once"),
    ],
)
def test_usage_is_one_line(arguments, says):
    run = stallscope("diagnose", *arguments)
    assert run.code == exit_codes.USAGE
    assert says in run.line()


@pytest.mark.soak
@pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
@pytest.mark.parametrize(
    ("fault", "finding", "seconds"),
    [
        ("lost-completion", "stuck-lookup", t.STUCK_TIMEOUTS * LOOKUP_SECONDS + 3),
        ("missing-key", "wedged-connection", 1.0),
    ],
)
@again
def test_a_stock_engines_own_stack_makes_its_fault_surer(
    tmp_path, fault, finding, seconds, version
):
    with rank(fault, tmp_path, version) as of:
        of.begin()
        time.sleep(seconds)
        arguments = ["--from", of.pages, "--valkey", of.url, "--json"]
        answers = [
            json.loads(stallscope("diagnose", *arguments, *more).out)["findings"]
            for more in ((), ("--stacks",))
        ]
    plain, weighed = (next(f for f in found if f["id"] == finding) for found in answers)
    assert weighed["confidence"] > plain["confidence"]
    assert "waits inside" in weighed["evidence"][-1]["text"]
