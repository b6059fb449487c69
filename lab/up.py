"""`stallscope lab up`: a deployment without containers: shards, both exporters, a Prometheus.

Every process is a child of this one and ends with it. An engine is what the user brings: its
environment is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lab import valkey
from lab.processes import Household, StopSignals
from lab.settings import SettingsError

HEALTHY_SECONDS: Final = 10.0
MOST_SHARDS: Final = 16
_SCRAPE_SECONDS: Final = 5
_NAMES: Final = ("prometheus", "prometheus-server")


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What to bring up. `prometheus`: a program, "" for one on the PATH, "none" for none."""

    shards: int = 2
    pages: str = ""
    valkey_server: str = ""
    shard_bytes: int = 256 << 20
    prometheus: str = ""

    def check(self) -> None:
        """Raises SettingsError."""
        if not 1 <= self.shards <= MOST_SHARDS:
            raise SettingsError(f"--shards {self.shards}: give 1 to {MOST_SHARDS}")
        if self.prometheus not in ("", "none") and shutil.which(self.prometheus) is None:
            raise SettingsError(f"--prometheus {self.prometheus}: no such program")


@dataclass(slots=True)
class Standing:
    """What is up: addresses, and the processes by name."""

    shard_url: str
    shards: list[str]
    pages: Path
    exporters: dict[str, str] = field(default_factory=dict)
    prometheus: str = ""
    missing: list[str] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "shard_url": self.shard_url,
            "shards": self.shards,
            "pages": str(self.pages),
            "exporters": self.exporters,
            "prometheus": self.prometheus,
            "missing": self.missing,
            "pids": {name: process.pid for name, process in self.processes.items()},
            "healthy_after_seconds": round(self.seconds, 2),
        }


class UpError(RuntimeError):
    """Something that did not come up, or that ended; one line."""


def up(settings: UpSettings, stop: StopSignals, told: Callable[[Standing], None]) -> None:
    """Bring all up, tell where it is, and watch it until a signal. Raises UpError, Interrupted."""
    with Household() as household:
        began = time.monotonic()
        standing = _start(settings, household, stop)
        _wait_until_healthy(standing, stop, began + HEALTHY_SECONDS)
        standing.seconds = time.monotonic() - began
        told(standing)
        while True:
            stop.sleep(0.5)
            for name, process in standing.processes.items():
                if process.poll() is not None:
                    raise UpError(f"{name} (pid {process.pid}) has ended; everything is stopped")


def _start(settings: UpSettings, household: Household, stop: StopSignals) -> Standing:
    binary = valkey.find_server(settings.valkey_server)
    hosts = valkey.rank_hosts(settings.shards)
    port = valkey.free_port(hosts)
    pages = Path(settings.pages) if settings.pages else household.folder / "pages"
    try:
        pages.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--pages {pages}: {error.strerror}") from None
    servers = []
    for index, host in enumerate(hosts):
        stop.check()
        try:
            servers.append(
                valkey.start(household, stop, binary, index, settings.shard_bytes, host, port)
            )
        except valkey.ValkeyError as error:
            raise UpError(str(error)) from None
    standing = Standing(
        shard_url=f"resp://{valkey.RANK_HOST}:{port}",
        shards=[server.url for server in servers],
        pages=pages,
        processes={f"shard {server.index}": server.process for server in servers},
    )
    shards = ["--valkey", f"redis://{valkey.RANK_HOST}:{port}", "--shards", str(settings.shards)]
    for name, arguments in (
        ("pages", ["--collect", "pages", "--from", str(pages)]),
        ("shards", ["--collect", "shards", *shards]),
    ):
        listen = valkey.free_port([valkey.LOCAL])
        standing.processes[f"{name} exporter"] = household.start(
            [
                *(sys.executable, "-m", "runbooks.cli.main", "exporter", *arguments),
                *("--listen", f"{valkey.LOCAL}:{listen}"),
            ],
            log=household.folder / f"exporter-{name}.log",
        )
        standing.exporters[name] = f"http://{valkey.LOCAL}:{listen}"
    _start_prometheus(settings, household, standing)
    return standing


def _start_prometheus(settings: UpSettings, household: Household, standing: Standing) -> None:
    if settings.prometheus == "none":
        return
    names = (settings.prometheus,) if settings.prometheus else _NAMES
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        standing.missing.append("no Prometheus on the PATH; name one with --prometheus PATH")
        return
    folder = household.folder / "server"
    folder.mkdir()
    config = folder / "prometheus.yml"
    rules = subprocess.run(
        [sys.executable, "-m", "runbooks.cli.main", "monitoring", "rules"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if rules.returncode == 0:
        (folder / "rules.yaml").write_text(rules.stdout, encoding="utf-8")
    else:
        why = (rules.stderr.strip().splitlines() or ["no reason given"])[-1]
        standing.missing.append(f"the rules: {why}")
    jobs = [
        {
            "job_name": f"stallscope-{name}",
            "static_configs": [{"targets": [url.partition("//")[2]]}],
        }
        for name, url in standing.exporters.items()
    ]
    # YAML holds all of JSON.
    settings_of_server = {
        "global": {
            "scrape_interval": f"{_SCRAPE_SECONDS}s",
            "evaluation_interval": f"{_SCRAPE_SECONDS}s",
        },
        "rule_files": [str(path) for path in folder.glob("rules.yaml")],
        "scrape_configs": jobs,
    }
    config.write_text(json.dumps(settings_of_server), encoding="utf-8")
    port = valkey.free_port([valkey.LOCAL])
    standing.processes["Prometheus"] = household.start(
        [
            *(program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
            f"--web.listen-address={valkey.LOCAL}:{port}",
        ],
        log=folder / "log",
    )
    standing.prometheus = f"http://{valkey.LOCAL}:{port}"


def _wait_until_healthy(standing: Standing, stop: StopSignals, deadline: float) -> None:
    """Until each answers that it is ready. Raises UpError with the one that does not."""
    wanted = {f"{name} exporter": f"{url}/-/ready" for name, url in standing.exporters.items()}
    if standing.prometheus:
        wanted["Prometheus"] = f"{standing.prometheus}/-/ready"
    while wanted:
        for name, url in list(wanted.items()):
            process = standing.processes[name]
            if process.poll() is not None:
                raise UpError(f"{name} ended as it started (exit {process.returncode})")
            if _answers(url):
                del wanted[name]
        if wanted and time.monotonic() > deadline:
            raise UpError(f"{', '.join(wanted)}: not ready within {HEALTHY_SECONDS:.0f} s")
        stop.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def render(standing: Standing) -> str:
    """What is up, for a person, and what an engine must be told."""
    extra = json.dumps({"pcp_shard_store": True, "resp_num_threads": 4})
    lines = [
        f"up after {standing.seconds:.1f} s; Ctrl-C stops all",
        "",
        *(f"shard {index}       {url}" for index, url in enumerate(standing.shards)),
        *(f"{name + ' exporter':<15} {url}/metrics" for name, url in standing.exporters.items()),
        *([f"Prometheus      {standing.prometheus}"] if standing.prometheus else []),
        *(f"missing         {line}" for line in standing.missing),
        "",
        "an engine:",
        f"  STALLSCOPE_DIR={standing.pages}",
        f"  LMCACHE_REMOTE_URL={standing.shard_url}",
        f"  LMCACHE_EXTRA_CONFIG='{extra}'",
        "",
        f"look:  stallscope diagnose --from {standing.pages}",
    ]
    if standing.prometheus:
        lines.append(f"       stallscope diagnose --from {standing.prometheus} --at 1m")
    return "\n".join(lines)
