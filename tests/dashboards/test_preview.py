"""Panels drawn from what a Prometheus answers; here one that answers every query alike."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

pytest.importorskip("matplotlib")

from dashboards import preview
from dashboards.boards import BOARDS
from dashboards.model import Healthy, Panel, Target
from runbooks.cli.main import main
from tests.runbooks.command_line import stallscope
from tests.servers import free_port

LABELS = {"engine": "$e$^_{", "rank": "3", "shard": "redis://v-0:6379", "finding": "store-skew"}
PNG = b"\x89PNG\r\n"


class Answers:
    """What it answers, and the queries it got."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.body = ""
        self.status = 200
        self.value = "0.4"

    def answer(self, path: str, form: dict[str, list[str]]) -> str:
        self.asked.append(form["query"][0])
        if self.body:
            return self.body
        if path.endswith("query_range"):
            start, end = float(form["start"][0]), float(form["end"][0])
            values = [[start + i * (end - start) / 10, self.value] for i in range(11)]
            rows = [{"metric": LABELS, "values": values}]
        else:
            rows = [{"metric": LABELS, "value": [float(form["time"][0]), self.value]}]
        return json.dumps({"status": "success", "data": {"result": rows}})


@contextlib.contextmanager
def prometheus() -> Iterator[tuple[str, Answers]]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            data = answers.answer(self.path, form).encode()
            self.send_response(answers.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_board_of_each_kind_of_panel_is_drawn(tmp_path):
    board = next(b for b in BOARDS if b.uid == "stallscope-fleet")
    out = tmp_path / "out"
    with prometheus() as (url, answers):
        run = stallscope(
            *("monitoring", "preview", "--from", url, "--out", out, "--board", board.uid),
            *("--minutes", "5", "--set", "engine=e|f", "--interval", "30s"),
        )
    assert (run.code, run.err) == (0, ""), run.err
    pictures = sorted((out / board.uid).glob("*.png"))
    assert len(pictures) == len(board.panels())
    assert all(path.read_bytes().startswith(PNG) for path in pictures)
    page = (out / f"{board.uid}.html").read_text()
    assert page.count("<figure>") == len(pictures) and "data:image/png;base64" in page
    for panel in board.panels():
        assert panel.title.replace("'", "&#x27;") in page
    assert not any("$" in query for query in answers.asked)
    assert any('engine=~"e|f"' in query for query in answers.asked)
    assert any("[30s]" in query for query in answers.asked)


@pytest.mark.parametrize("kind", ["timeseries", "stat", "table", "state-timeline", "bargauge"])
@pytest.mark.parametrize("value", ["0.4", "NaN", "+Inf", None])
def test_any_value_or_none_is_drawn(kind, value):
    panel = Panel(
        "Title", (Target("up", "{{rank}} {{none}}"),), "s", "Shows.", "0.", kind=kind,
        healthy=Healthy(high=0.1), low=0,
    )  # fmt: skip
    with prometheus() as (url, answers):
        answers.value = value
        if value is None:
            answers.body = json.dumps({"status": "success", "data": {"result": []}})
        drawn = preview.ask(preview.Prometheus(url), panel, 1000.0, 60.0, "1m", {})
    assert preview.png(drawn).startswith(PNG)
    assert [s.legend for s in drawn.series] == ([] if value is None else ["3 "])


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (422, '{"status": "error", "error": "query timed out"}', "HTTP 422: query timed out"),
        (502, "<h1>Bad gateway</h1>", "HTTP 502"),
        (200, "<h1>Log in</h1>", "does not answer like Prometheus"),
        (200, "[]", "does not answer like Prometheus"),
        (200, '{"data": {}}', "does not answer like Prometheus"),
        (200, '{"data": null}', "does not answer like Prometheus"),
    ],
)
def test_what_is_no_prometheus_is_said_in_one_line(status, body, said):
    with prometheus() as (url, answers):
        answers.status, answers.body = status, body
        with pytest.raises(preview.PreviewError, match=said) as caught:
            preview.Prometheus(url).at("up", 0)
        assert url in str(caught.value)


def test_usage_errors_are_one_line(tmp_path, capsys):
    nobody = f"http://127.0.0.1:{free_port()}"
    file = tmp_path / "file"
    file.write_text("")
    for arguments, said in (
        (("preview", "--from", nobody), "cannot be asked"),
        (("preview", "--from", "prometheus:9090"), "is not a URL"),
        (("preview", "--from", nobody, "--minutes", "0"), "--minutes"),
        (("preview", "--from", nobody, "--board", "nope"), "there are stallscope-fleet"),
        (("build", "--time-scale", "0.5"), "--out"),
        (("build", "--time-scale", "0", "--out", tmp_path), "--time-scale"),
        (("build", "--out", file), "cannot be written"),
        (("rules", "--runbook-base", "wiki"), "is not a URL"),
    ):
        assert main(["monitoring", *map(str, arguments)]) == 64, arguments
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1, told


def test_values_read_in_their_unit():
    shown = [
        preview.shown(value, unit)
        for value, unit in (
            (0.123, "percentunit"), (1.0, "bool_yes_no"), (0.0, "bool_yes_no"), (2.5e9, "Bps"),
            (0.25, "s"), (12.0, "short"), (4100.0, "ops"),
        )
    ]  # fmt: skip
    assert shown == ["12.3%", "yes", "no", "2.5 GB/s", "0.25 s", "12", "4.1 k/s"]


def test_what_a_prometheus_has_no_data_of_is_named(capsys):
    with prometheus() as (url, answers):
        assert main(["monitoring", "check", "--from", url]) == 0
        assert "count(vllm:num_requests_running)" in answers.asked
        assert not any("stallscope_finding)" in query for query in answers.asked)
        answers.body = json.dumps({"status": "success", "data": {"result": []}})
        assert main(["monitoring", "check", "--from", url, "--json"]) == 1
    said = capsys.readouterr().out
    expected = "has no vllm:num_requests_running, which is read by stallscope-gates"
    assert expected in said and "StallscopePageMissing" in said
    assert main(["monitoring", "check", "--from", "prometheus"]) == 64
