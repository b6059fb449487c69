"""`diagnose --from PROMETHEUS_URL --at TIME`, on a real one: findings as they were published."""

from __future__ import annotations

import contextlib
import http.server
import json
import subprocess
import threading
import time
import urllib.request

import pytest

from exporters.page_layout import SUFFIX
from runbooks.cli import exit_codes
from tests.exporters.page_files import PageFile, worker_info
from tests.prometheus_binary import programs
from tests.runbooks.command_line import COMMAND, environment, stallscope
from tests.servers import free_port

SIZE = 2


@contextlib.contextmanager
def exporting(pages):
    options = ["--listen", "127.0.0.1:0", "--json", "--from", str(pages)]
    exporter = subprocess.Popen(
        [*COMMAND, "exporter", *options], env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield json.loads(exporter.stdout.readline())["listening"]
    finally:
        exporter.kill()
        exporter.wait()
        exporter.stdout.close()


@contextlib.contextmanager
def prometheus(folder, target):
    server, _ = programs()
    config = folder / "prometheus.yml"
    job = {"job_name": "pods", "static_configs": [{"targets": [target]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    port = free_port()
    process = subprocess.Popen(
        [
            *(server, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_for(url, name, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        query = f"{url}/api/v1/query?query={name}"
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(query, timeout=2) as answer,
        ):
            if json.load(answer)["data"]["result"]:
                return
        time.sleep(0.2)
    raise AssertionError(f"no {name} in {url}")


def told(run):
    return [
        (f["id"], f["severity"], f["rank"], f["shard"], f["engine"])
        for f in json.loads(run.out)["findings"]
    ]


def test_history_is_what_was_live(tmp_path):
    """Two engines whose processes are gone: one of the two has two ranks that are dead."""
    pages = tmp_path / "pages"
    pages.mkdir()
    for name, size in (("engine-a", SIZE), ("engine-b", 1)):
        for rank in range(size):
            info = worker_info(rank, size, engine_id=name)
            PageFile(pages / f"{name}-{rank}{SUFFIX}", info)
    with exporting(pages) as exporter, prometheus(tmp_path, exporter.split("/")[2]) as url:
        wait_for(url, "stallscope_finding")
        live = stallscope("diagnose", "--from", exporter, "--json")
        now = stallscope("diagnose", "--from", url, "--json")
        then = stallscope("diagnose", "--from", url, "--at", f"{time.time():.0f}", "--json")
        before = stallscope("diagnose", "--from", url, "--at", "3d", "--json")
        text = stallscope("diagnose", "--from", url).out
    assert told(live)
    flat = [
        (f["id"], f["severity"], f["rank"], f["shard"], f["engine"])
        for top in json.loads(live.out)["findings"]
        for f in (top, *top["symptoms"])
    ]
    history = [
        (f["id"], f["severity"], f["rank"], f["shard"], f["engine"])
        for top in json.loads(now.out)["findings"]
        for f in (top, *top["symptoms"])
    ]
    assert sorted(history, key=str) == sorted(flat, key=str)
    assert told(then) == told(now)
    assert told(now)[0][4] == "engine-a", "the pod with most to tell comes first"
    assert (before.code, told(before)) == (exit_codes.UNSEEN, [])
    assert "no series of stallscope" in before.out and "keeps them for" in before.out
    assert "its evidence is not" in text
    assert "engine-dead" in text


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code = int(self.path.split("/")[1])
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_):
        return


@pytest.mark.parametrize(
    ("code", "says"),
    [(401, "STALLSCOPE_WEB_TOKEN"), (403, "may not read"), (503, "ask again"), (200, "not JSON")],
)
def test_a_server_that_gives_none_is_one_line(code, says):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://u:secret@127.0.0.1:{server.server_port}/{code}"
        run = stallscope("diagnose", "--from", url)
        server.shutdown()
    assert run.code == exit_codes.USAGE
    assert says in run.line() and "secret" not in run.line()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "http://127.0.0.1:9", "--at", "noon"), "write it like"),
        (("--from", "http://127.0.0.1:9", "--at", "2999-01-01"), "has been"),
        (("--from", ".", "--at", "10m"), "goes with"),
        (("--from", "http://127.0.0.1:9", "--at", "10m"), "cannot be reached"),
    ],
)
def test_bad_times(arguments, says):
    run = stallscope("diagnose", *arguments)
    assert run.code == exit_codes.USAGE
    assert says in run.line()
