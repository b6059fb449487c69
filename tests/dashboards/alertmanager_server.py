"""A real Alertmanager with the shipped example, and a receiver that counts what it is sent."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dashboards import alertmanager
from dashboards.durations import Scale
from tests.prometheus_binary import alertmanager_programs
from tests.servers import free_port

TEMPLATES = Path("/usr/share/prometheus/alertmanager/default.tmpl")
_AS_SHARE = 'mount --bind "$0" /usr/share && exec "$@"'
SITE = "https://alerts.example.com/stallscope"


@dataclass
class Alertmanager:
    """The server, and every notification by receiver, in order."""

    address: str
    sent: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def pages(self) -> list[list[str]]:
        """The alerts of each notification that woke someone."""
        firing = [n for n in self.sent.get("pages", []) if n["status"] == "firing"]
        return [
            sorted(a["labels"]["alertname"] for a in n["alerts"] if a["status"] == "firing")
            for n in firing
        ]

    def post(self, *alerts: dict[str, str]) -> None:
        """Alerts as Prometheus sends them, by their labels."""
        data = json.dumps([{"labels": labels} for labels in alerts]).encode()
        asked = urllib.request.Request(
            f"http://{self.address}/api/v2/alerts",
            data,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=10):
            pass


def command() -> list[str]:
    """Debian's server wants its templates under /usr/share: unpacked elsewhere, it is given that
    folder as its own /usr/share, in a mount namespace that needs no root."""
    program, _ = alertmanager_programs()
    if TEMPLATES.exists():
        return [program]
    share = Path(program).parents[1] / "share"
    seen = ["unshare", "--map-root-user", "--mount", "sh", "-c", _AS_SHARE, str(share)]
    try:
        subprocess.run([*seen, "true"], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"no {TEMPLATES}, and no mount namespace may be made here")
    return [*seen, program]


@contextlib.contextmanager
def alertmanager_server(folder: Path, scale: float) -> Iterator[Alertmanager]:
    """Running, with all times scaled; skipped where there is no Alertmanager."""
    folder.mkdir()
    found = Alertmanager(f"127.0.0.1:{free_port()}")
    with _receiver(found) as url:
        text = json.dumps(alertmanager.build(Scale(scale))).replace(SITE, url)
        (folder / "config.json").write_text(text)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    *command(),
                    f"--config.file={folder / 'config.json'}",
                    f"--storage.path={folder / 'data'}",
                    f"--web.listen-address={found.address}",
                    "--cluster.listen-address=",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            until = time.monotonic() + 20
            while not _ready(found.address):
                said = (folder / "log").read_text()
                assert process.poll() is None and time.monotonic() < until, said
                time.sleep(0.05)
            yield found
        finally:
            process.terminate()
            process.wait(timeout=20)


def _ready(address: str) -> bool:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://{address}/-/ready", timeout=2) as answer,
    ):
        return bool(answer.status == 200)
    return False


@contextlib.contextmanager
def _receiver(found: Alertmanager) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.sent.setdefault(self.path.strip("/"), []).append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
