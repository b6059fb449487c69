"""A result on disk is whole after each request, and what cannot be read is named."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runbooks.cli import exit_codes
from runbooks.cli.main import main
from runbooks.replay import results


@pytest.mark.parametrize("rows", [[], [1], [{"outcome": "ok", "ttft_s": None}]])
def test_a_result_without_data_is_refused(tmp_path: Path, rows: list[object]) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"requests": rows}))
    with pytest.raises(results.ResultError, match=r"result\.json"):
        results.read(path)


def _row(due_s: float, outcome: str = "ok") -> dict[str, object]:
    return {"due_s": due_s, "input_tokens": 9000, "outcome": outcome, "ttft_s": 1.5}


def test_a_run_killed_within_a_line_keeps_those_above(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("wb", buffering=0) as file:
        writer = results.Writer(file)
        writer.line(_row(2))
        writer.line(_row(1, "timeout"))
        file.write(b'{"due_s": 3, "inp')
    found = results.read(path)
    assert found == [results.Row(1, 9000, None), results.Row(2, 9000, 1.5)]
    assert [name for name, _ in results.bands(found)] == ["8192..32767 tokens"]
    assert [len(part) for _, part in results.thirds(found)] == [0, 1, 1]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"schema": 2}\n{nope\n')
    with pytest.raises(results.ResultError, match=r"run\.jsonl:2: not JSON"):
        results.read(path)


def test_a_full_disk_is_a_fault_and_never_raises() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file:
        writer = results.Writer(file)
        writer.line(_row(1))
        assert writer.fault


def test_ctrl_c_keeps_and_sums_up_what_was_sent(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp")
    trace, out = tmp_path / "t.jsonl", tmp_path / "run.jsonl"
    rows = [{"timestamp": at_ms, "input_length": 4} for at_ms in (0, 10, 600_000)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        server.settimeout(60)
        line = [sys.executable, "-m", "runbooks.cli.main", "replay", str(trace), "--model", "m"]
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/completions"
        process = subprocess.Popen([*line, "--url", url, "--out", str(out)], stdout=-1)
        try:
            held = [server.accept()[0] for _ in range(2)]
            time.sleep(0.3)
            os.kill(process.pid, signal.SIGINT)
            text = process.communicate(timeout=30)[0].decode()
        finally:
            process.kill()
            process.wait()
        for connection in held:
            connection.close()
    assert process.returncode == exit_codes.INTERRUPTED
    assert "2 answered: 2 interrupted" in text
    assert [row.ttft_s for row in results.read(out)] == [None, None]
    assert json.loads(out.read_text().splitlines()[-1]) == {"ended": True, "stopped": "interrupted"}


def test_a_refused_trace_leaves_an_earlier_result_alone(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp")
    trace, out = tmp_path / "t.jsonl", tmp_path / "run.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 4}\n{nope\n')
    out.write_text("earlier")
    line = ["replay", str(trace), "--url", "http://127.0.0.1:1/", "--model", "m"]
    assert main([*line, "--out", str(out)]) == exit_codes.USAGE
    assert out.read_text() == "earlier"
