"""The two roles: a pod's sidecar asks no shard, the fleet's one exporter reads no page; budgets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from runbooks.cli.exporter import MOST_SHARDS, shard_urls
from runbooks.cli.parser import UsageError
from tests.exporters.page_files import locked
from tests.exporters.test_contract import lockstep_pages
from tests.servers import valkey_server

COMMAND = (sys.executable, "-m", "runbooks.cli.main", "exporter", "--listen", "127.0.0.1:0")


@contextlib.contextmanager
def _exporter(*arguments, env):
    process = subprocess.Popen(
        [*COMMAND, "--json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    try:
        yield json.loads(process.stdout.readline())["listening"]
    finally:
        process.kill()
        process.communicate()


def _scrape(url):
    """The samples of the first scrape with an answer of every kind in it."""
    while True:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        found = [s for f in text_string_to_metric_families(text) for s in f.samples]
        values = {s.name: s.value for s in found}
        shards_told = values.get("stallscope_shard_up") != 1 or any(
            name.startswith("stallscope_shard_main_thread_saturation") for name in values
        )
        if values["stallscope_ticks_total"] >= 2 and shards_told:
            return found


def test_each_role_collects_its_own_half_within_its_budget(tmp_path):
    with valkey_server() as port, redis.Redis(port=port) as client:
        valkey = f"redis://127.0.0.1:{port}"
        client.set("k", "v")  # a command that was never run has no series
        client.exists("k")
        client.get("k")
        pages = lockstep_pages(tmp_path, valkey)
        env = {"STALLSCOPE_DIR": str(tmp_path)}
        with locked(*(page.path for page in pages)):
            with _exporter("--collect", "pages", env=env) as url:
                sidecar = _scrape(url)
                asked = [c["name"] for c in client.client_list()]
            with _exporter("--collect", "shards", "--valkey", valkey, env=env) as url:
                fleet = _scrape(url)
    assert "stallscope" not in asked
    assert not [s for s in sidecar if "shard_" in s.name]
    for rank in ("0", "1"):
        own = [s for s in sidecar if s.labels.get("rank") == rank]
        assert 40 < len(own) < 100
    assert len([s for s in sidecar if s.labels.get("role") == "scheduler"]) < 250
    assert not [s for s in fleet if s.labels.get("engine") or s.labels.get("rank")]
    assert {s.labels["source"] for s in fleet if s.name == "stallscope_source_up"} == {valkey}
    assert 30 < len([s for s in fleet if s.labels.get("shard") == valkey]) < 90


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--collect", "pages", "--from", ".", "--valkey", "a"), "leave out --valkey"),
        (("--collect", "shards", "--from", ".", "--valkey", "a"), "leave out --from"),
        (("--collect", "shards"), "needs --valkey"),
        (("--collect", "both"), "invalid choice"),
        (("--valkey", "u:s3cret@v-{rank}"), "say how many: --shards"),
        (("--valkey", "a", "--shards", "8"), "{rank} in it"),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments, said):
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode not in (0, 1)
    assert said in done.stderr and "Traceback" not in done.stderr
    assert "s3cret" not in done.stderr


def test_a_template_stands_for_each_rank():
    assert shard_urls(["resp://v-{rank}:63{rank}1"], 2) == ["resp://v-0:6301", "resp://v-1:6311"]
    assert shard_urls(["a", "b"], None) == ["a", "b"]
    for given, count in (
        (["v-{rank}"], 0),
        (["v-{rank}"], MOST_SHARDS + 1),
        (["v-{rank}", "b"], 2),
        ([], 2),
    ):
        with pytest.raises(UsageError):
            shard_urls(given, count)
