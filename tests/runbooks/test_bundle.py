"""`stallscope bundle` and what `diagnose --from` says of it, of a recording and of an exporter."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request

import pytest

from runbooks.cli import exit_codes
from tests.runbooks.command_line import COMMAND, environment, stallscope

SECRET = "hunter2-s3cr3t"
WRITER = f"""
import sys, time
from patched_engine import recorder
recorder.identify(
    "worker", 0, world_size=1,
    shard_url=recorder.url_without_credentials("resp://user:{SECRET}@valkey-0:6379"),
)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def engine(tmp_path):
    """A process that writes a page, with secrets in all that a bundle looks at."""
    pages = tmp_path / "pages"
    pages.mkdir()
    config = tmp_path / "lmcache.yaml"
    config.write_text(f"chunk_size: 256\nremote_url: resp://u:{SECRET}@v:1\napi_key: {SECRET}\n")
    secrets = {
        "STALLSCOPE_DIR": str(pages),
        "STALLSCOPE_ENGINE_ID": "engine-a",
        "LMCACHE_CONFIG_FILE": str(config),
        "LMCACHE_REMOTE_URL": f"resp://user:{SECRET}@valkey-0:6379",
        "LMCACHE_EXTRA_CONFIG": json.dumps({"remote_password": SECRET, "pcp_shard_store": True}),
        "LMCACHE_RESP_PASSWORD": SECRET,
        "VLLM_API_KEY": SECRET,
        "HF_TOKEN": SECRET,
    }
    command = [sys.executable, "-c", WRITER, "--api-key", SECRET]
    with subprocess.Popen(command, env=environment(**secrets), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield pages, process
        process.kill()


def test_it_is_whole_and_without_secrets(engine, tmp_path):
    pages, process = engine
    out = tmp_path / "b.tar.gz"
    run = stallscope("bundle", "--from", pages, "--out", out, "--json")
    told = json.loads(run.out)
    assert run.code in (exit_codes.OK, exit_codes.UNSEEN), run
    assert told["path"] == str(out)
    with tarfile.open(out) as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}
    assert {"manifest.json", "pictures.jsonl", "metrics.txt", "engine.json"} <= set(members)
    assert [name for name in members if name.startswith("pages/")]
    assert [name for name, data in members.items() if SECRET.encode() in data] == []
    said = json.loads(members["engine.json"])[0]
    assert (said["pid"], said["rank"]) == (process.pid, 0)
    assert "pcp_shard_store" in said["environment"]["LMCACHE_EXTRA_CONFIG"]
    assert "chunk_size: 256" in said["configuration"]
    assert b"stallscope_process_state" in members["metrics.txt"]


def test_a_dead_rank_is_the_same_in_it(engine, tmp_path):
    pages, process = engine
    process.send_signal(signal.SIGKILL)
    process.wait()
    live = json.loads(stallscope("diagnose", "--from", pages, "--json").out)["findings"]
    assert live[0]["id"] == "engine-dead"
    out = tmp_path / "b.tar.gz"
    assert stallscope("bundle", "--from", pages, "--out", out).code == exit_codes.UNSEEN
    run = stallscope("diagnose", "--from", out, "--json")
    assert run.code == exit_codes.CRITICAL
    found = json.loads(run.out)["findings"]
    assert [(f["id"], f["rank"]) for f in found] == [(f["id"], f["rank"]) for f in live]
    assert "engine-dead" in stallscope("diagnose", "--from", out).out


def test_an_exporter_records_captures_and_answers(engine, tmp_path):
    pages, process = engine
    record, captures = tmp_path / "r.jsonl", tmp_path / "captures"
    options = ["--listen", "127.0.0.1:0", "--json", "--from", str(pages), "--every", "1"]
    options += ["--record", str(record), "--capture-dir", str(captures)]
    exporter = subprocess.Popen(
        [*COMMAND, "exporter", *options], env=environment(), stdout=subprocess.PIPE, text=True
    )
    with exporter:
        url = json.loads(exporter.stdout.readline())["listening"]
        process.kill()
        process.wait()
        deadline = time.monotonic() + 15
        while not (found := list(captures.glob("capture-*.tar.gz"))):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2.5)  # for a picture that is recorded after it
        live = stallscope("diagnose", "--from", url.removesuffix("/metrics"), "--json")
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        exporter.send_signal(signal.SIGTERM)
    assert "stallscope_captures_total 1.0" in text
    sources = {"exporter": live, "bundle": stallscope("diagnose", "--from", found[0], "--json")}
    sources["recording"] = stallscope("diagnose", "--from", record, "--json")
    for name, run in sources.items():
        assert run.code == exit_codes.CRITICAL, (name, run)
        assert json.loads(run.out)["findings"][0]["id"] == "engine-dead", name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bundle", "--from", "{folder}", "--out", "{folder}"), "is a folder"),
        (("bundle", "--from", "{folder}", "--out", "{folder}/no/b.tar.gz"), "No such file"),
        (("diagnose", "--from", "{recording}", "--watch"), "--watch looks at what is now"),
        (("diagnose", "--from", "http://127.0.0.1:9"), "cannot be reached"),
        (("exporter", "--from", "{folder}", "--record", "{folder}/no/r"), "--record"),
        (("exporter", "--from", "{folder}", "--record", "r", "--every", "0"), "1 to 3600"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, says):
    recording = tmp_path / "r.jsonl"
    recording.write_text('{"stallscope_recording": 1}\n')
    named = {"folder": str(tmp_path), "recording": str(recording)}
    run = stallscope(*(word.format(**named) for word in arguments))
    assert run.code == exit_codes.USAGE
    assert says in run.line()
