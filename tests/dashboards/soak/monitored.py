"""A lab under a fault, its exporter, and a real Prometheus with our rules at a time scale."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboards import rule_files
from dashboards.durations import Scale
from dashboards.model import Links
from tests.dashboards.soak.scraped import Target
from tests.lab.runs import LabRun, end, start
from tests.runbooks.command_line import COMMAND, environment
from tests.servers import free_port

SCRAPE_SECONDS = 0.5
SCALE = 0.02
CLUSTER, NAMESPACE = "lab", "vllm"
LOOKBACK = "5s"  # a series that is gone must not linger for minutes


@dataclass
class Prometheus:
    """A running server with our rules."""

    url: str
    began: float = field(default_factory=time.time)

    def query(self, text: str, at: float | None = None) -> list[dict[str, Any]]:
        arguments = {"query": text} | ({"time": at} if at else {})
        return self._ask("query", **arguments)["result"]

    def fired(self) -> set[tuple[str, str]]:
        """(alert, severity) of all that fired since the start; the watchdog left out."""
        window = f"{max(1, int(time.time() - self.began) + 2)}s"
        chosen = f'ALERTS{{alertstate="firing", alertname!="StallscopeWatchdog"}}[{window}]'
        rows = self.query(f"max_over_time({chosen})")
        return {(row["metric"]["alertname"], row["metric"].get("severity", "")) for row in rows}

    def wait_for(self, alert: str, seconds: float) -> dict[str, str]:
        """The labels of an alert that fires within so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            rows = self.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
            if rows:
                return dict(rows[0]["metric"])
            time.sleep(0.5)
        standing = self.query("stallscope_finding")
        raise AssertionError(f"{alert} did not fire; fired: {self.fired()}; stand: {standing}")

    def unhealthy_rules(self) -> list[str]:
        """Rules whose evaluation fails, with the error."""
        groups = self._ask("rules")["groups"]
        return [
            f"{rule['name']}: {rule.get('lastError')}"
            for group in groups
            for rule in group["rules"]
            if rule["health"] == "err"
        ]

    def _ask(self, name: str, **arguments: object) -> Any:
        asked = f"{self.url}/api/v1/{name}"
        data = urllib.parse.urlencode(arguments).encode() if arguments else None
        with urllib.request.urlopen(asked, data, timeout=30) as answer:
            return json.load(answer)["data"]


def config(folder: Path, targets: list[Target], alertmanager: str, scale: float) -> Path:
    """Prometheus' configuration, with the rules beside it."""
    rules = folder / "rules.json"
    rules.write_text(json.dumps(rule_files.build(Scale(scale), Links(rule_files.RUNBOOK_BASE))))
    jobs = [
        {
            "job_name": job,
            "static_configs": [
                {
                    "targets": [target.address],
                    "labels": {"cluster": CLUSTER, "namespace": NAMESPACE, "pod": target.pod},
                }
                for target in targets
                if target.job == job
            ],
        }
        for job in sorted({target.job for target in targets})
    ]
    interval = f"{int(SCRAPE_SECONDS * 1000)}ms"
    managers = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
    path = folder / "prometheus.json"
    path.write_text(
        json.dumps(
            {
                "global": {
                    "scrape_interval": interval,
                    "scrape_timeout": interval,
                    "evaluation_interval": interval,
                },
                "rule_files": [str(rules)],
                "scrape_configs": jobs,
                "alerting": {"alertmanagers": managers},
            }
        )
    )
    return path


@contextlib.contextmanager
def prometheus(
    program: str,
    folder: Path,
    targets: list[Target],
    alertmanager: str = "",
    scale: float = SCALE,
) -> Iterator[Prometheus]:
    """A server that scrapes these, ready to be asked."""
    folder.mkdir()
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config(folder, targets, alertmanager, scale)}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                f"--query.lookback-delta={LOOKBACK}",
                # After a restart alerts wait so long before they fire from old state; not ours.
                "--rules.alert.resend-delay=1s",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        until = time.monotonic() + 30
        while not _ready(found.url):
            said = (folder / "log").read_text()
            assert process.poll() is None and time.monotonic() < until, said
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(timeout=30)


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2) as a:
        return bool(a.status == 200)
    return False


@contextlib.contextmanager
def lab_run(folder: Path, *arguments: str) -> Iterator[tuple[LabRun, Path, list[str]]]:
    """A lab that runs: itself, its pages and its shards' URLs."""
    pages = folder / "pages"
    pages.mkdir()
    lab = start(folder, "--pages", str(pages), *arguments)
    try:
        lab.wait_for(r"--valkey redis://[\d.]+:\d+")
        shards = int(arguments[arguments.index("--shards") + 1]) if "--shards" in arguments else 1
        until = time.monotonic() + 60
        while len(found := _shards(lab)) < shards and time.monotonic() < until:
            time.sleep(0.2)
        yield lab, pages, found
    finally:
        end(lab)


def _shards(lab: LabRun) -> list[str]:
    return list(dict.fromkeys(re.findall(r"redis://127[\d.]+:\d+", lab.log.read_text())))


@dataclass
class Exporter:
    """The command as an operator starts it."""

    process: subprocess.Popen[str]
    target: Target


@contextlib.contextmanager
def exporter(pages: Path | None, shards: list[str], pod: str = "prefill-0") -> Iterator[Exporter]:
    """Pages, shards, or both."""
    chosen = ["--from", str(pages)] if pages else []
    for url in shards:
        chosen += ["--valkey", url]
    process = subprocess.Popen(
        [*COMMAND, "exporter", *chosen, "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["listening"]
        yield Exporter(process, Target("vllm/stallscope", url.split("/")[2], pod))
    finally:
        process.kill()
        process.communicate()
