"""The compose file: the shards' names fit the URL, its options are real, its files are there."""

from __future__ import annotations

import subprocess
from urllib.parse import urlsplit

import yaml

from runbooks.cli.exporter import shard_urls
from tests.deploy.real_server import started
from tests.prometheus_binary import programs
from tests.runbooks.command_line import ROOT, stallscope

FOLDER = ROOT / "deploy" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_the_shards_are_those_of_the_url() -> None:
    command = COMPOSE["services"]["shards-exporter"]["command"]
    urls = shard_urls(
        [command[command.index("--valkey") + 1]], int(command[command.index("--shards") + 1])
    )
    names = [urlsplit(url).hostname for url in urls]
    assert names == [name for name in COMPOSE["services"] if name.startswith("valkey")]


def test_every_option_of_ours_is_real_and_every_file_is_there() -> None:
    known = stallscope("exporter", "--help").out
    for name in ("shards-exporter", "pages-exporter"):
        words = COMPOSE["services"][name]["command"]
        assert words[:2] == ["stallscope", "exporter"]
        assert all(word in known for word in words if word.startswith("--"))
    for volume in COMPOSE["services"]["prometheus"]["volumes"]:
        assert (FOLDER / volume.split(":")[0]).exists(), volume


def test_the_servers_options_are_valkeys() -> None:
    words = COMPOSE["x-shard"]["command"][1:]
    values = [word.replace("${SHARD_MEMORY:-1gb}", "64mb") for word in words]
    with started(values) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}


def test_promtool_takes_the_servers_configuration() -> None:
    _, promtool = programs()
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    targets = [c["static_configs"][0]["targets"][0] for c in config["scrape_configs"]]
    assert {t.split(":")[0] for t in targets} <= set(COMPOSE["services"])
    run = subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(FOLDER / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert run.returncode == 0, run.stderr
