"""Traces of each format are read in order; a bad one gets one line that names its place."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from runbooks.replay import traces


def _mooncake(at_ms: object, tokens: object = 600) -> str:
    row = {"timestamp": at_ms, "input_length": tokens, "output_length": 2, "hash_ids": [0, 1]}
    return json.dumps(row) + "\n"


def _write(folder: Path, text: str, name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_mooncake_times_start_at_zero(tmp_path: Path) -> None:
    path = _write(tmp_path, _mooncake(2000) + _mooncake(3500))
    found = list(traces.read(path, "mooncake"))
    assert found == [traces.Request(0, 600, 2, (0, 1)), traces.Request(1.5, 600, 2, (0, 1))]


def test_aiperf_keeps_its_text(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"timestamp": 5, "text_input": "hello", "output_length": 3}\n')
    assert list(traces.read(path, "aiperf")) == [traces.Request(0, 0, 3, (), "hello")]


def test_azure_reads_seven_decimals(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    path = _write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, "t.csv")
    found = list(traces.read(path, "azure"))
    assert [r.input_tokens for r in found] == [374, 396]
    assert found[1].at_s == pytest.approx(4.314579, abs=1e-5)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_router_log_by_its_column_map(tmp_path: Path, name: str) -> None:
    csv_text, json_text = "when,n\n20231116,7\n20231118,8\n", ""
    for when, n in ((20231116, 7), (20231118, 8)):  # seconds, not days
        json_text += json.dumps({"when": when, "n": n}) + "\n"
    path = _write(tmp_path, csv_text if name == "t.csv" else json_text, name)
    found = list(traces.read(path, "router", {"time": "when", "input_tokens": "n"}))
    assert found == [traces.Request(0, 7, 1), traces.Request(2, 8, 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no request"),
        (_mooncake(5) + _mooncake(4), ":2: sent before the line above"),
        (_mooncake(-1), ":1: timestamp is -1"),
        (_mooncake(0, -5), ":1: input_length is -5"),
        (_mooncake(0, 1.5), "tokens are whole"),
        (_mooncake(True), "timestamp is nan"),
        ("{nope\n", ":1: not JSON"),
        ("[1]\n", ":1: not an object"),
        ('{"timestamp": NaN, "input_length": 1}\n', "timestamp is nan"),
    ],
)
def test_a_bad_trace_gets_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(traces.TraceError) as caught:
        list(traces.read(_write(tmp_path, text), "mooncake"))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gigabyte_is_never_held_in_memory(tmp_path: Path) -> None:
    path = _write(tmp_path, _mooncake(0))
    with path.open("r+b") as file:
        file.truncate(1 << 30)  # sparse: one line of zeros
    tracemalloc.start()
    with pytest.raises(traces.TraceError, match="longer than"):
        list(traces.read(path, "mooncake"))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 128 * 1024 * 1024
