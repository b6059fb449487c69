"""A real Prometheus that scrapes one exporter, and the raw samples it has stored."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import free_port

Series = tuple[tuple[str, str], ...]  # sorted label pairs, __name__ among them
Stored = dict[Series, list[tuple[float, float]]]  # (seconds since the epoch, value)
# What the two servers give differently to one and the same series.
_OWN_LABELS = frozenset(("instance", "job"))


@dataclass(frozen=True)
class Prometheus:
    """A running server: its address and how often it scrapes."""

    url: str
    interval_seconds: int

    def raw(self, selector: str, window: str) -> Stored:
        """Every stored sample, none made up between two."""
        found = self._query(f"{selector}[{window}]")
        return {
            tuple(sorted((k, v) for k, v in row["metric"].items() if k not in _OWN_LABELS)): [
                (float(at), float(value)) for at, value in row["values"]
            ]
            for row in found
        }

    def own(self, name: str) -> float:
        """A figure the server exposes about itself, summed."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = [float(x.split()[-1]) for x in lines if x.split("{")[0].split(" ")[0] == name]
        assert values, name
        return sum(values)

    def _query(self, text: str) -> list[dict[str, Any]]:
        arguments = urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{arguments}", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


@contextlib.contextmanager
def prometheus(
    program: str, folder: Path, target: str, interval_seconds: int
) -> Iterator[Prometheus]:
    """A server with `target` (host:port) as its only job, ready to be asked."""
    folder.mkdir()
    config = folder / "prometheus.yml"
    job = {"job_name": "stallscope", "static_configs": [{"targets": [target]}]}
    interval = {"scrape_interval": f"{interval_seconds}s", "scrape_timeout": "2s"}
    config.write_text(json.dumps({"global": interval, "scrape_configs": [job]}))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        found = Prometheus(f"http://127.0.0.1:{port}", interval_seconds)
        deadline = time.monotonic() + 30
        while not _is_ready(found.url):
            assert process.poll() is None and time.monotonic() < deadline, (
                folder / "log"
            ).read_text()
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(timeout=30)


def _is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2) as a:
        return bool(a.status == 200)
    return False
