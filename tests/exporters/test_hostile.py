"""Pages and servers that say what no honest one would: one bounded line, never an error."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
import redis

from detectors import ALL_RULES
from exporters import reasons
from exporters.evaluator import Evaluator
from exporters.readers.page import MOST_RANKS, plain
from exporters.readers.valkey import reason_of
from tests.exporters.page_files import PageFile, locked, worker_info


def _tick(folder):
    evaluator = Evaluator(folder, (), ALL_RULES)
    try:
        return evaluator.tick()
    finally:
        evaluator.close()


@pytest.mark.parametrize("world_size", [10**9, -5, "4", None, True])
def test_a_world_size_is_bounded(tmp_path, world_size):
    page = PageFile(tmp_path / "0.page", {**worker_info(0, 2), "world_size": world_size})
    with locked(page.path):
        evaluation = _tick(tmp_path)
    assert evaluation.snapshot.engines[0].world_size <= MOST_RANKS
    assert len(evaluation.snapshot.unseen) <= MOST_RANKS + 1


def test_names_that_no_terminal_should_see_are_made_plain(tmp_path):
    page = PageFile(tmp_path / "0.page", worker_info(0, 2, engine_id="a\x1b[2J\nb\ud800"))
    with locked(page.path):
        [engine] = _tick(tmp_path).snapshot.engines
    assert engine.engine_id == plain("a\x1b[2J\nb\ud800") == "a?[2J?b?"
    engine.engine_id.encode()


def test_collectives_that_found_no_ring_are_said(tmp_path):
    pages = [PageFile(tmp_path / f"{r}.page", worker_info(r, 2)) for r in range(2)]
    pages[1].count("ring_drops", 7)
    with locked(*[page.path for page in pages]):
        unseen = _tick(tmp_path).snapshot.unseen
    assert [u.reason for u in unseen if "7 collectives are not on record" in u.detail] == [
        reasons.UNJOINED
    ]


@pytest.mark.parametrize("reply", [b":1\r\n", b"*0\r\n", b"$-1\r\n", b"*1\r\n" * 20_000])
def test_an_info_that_is_none_is_not_valkey(reply):
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):  # the client may hang up on such an answer
            while data := connection.recv(65536):
                for _ in range(data.count(b"CLIENT") + data.count(b"HELLO")):
                    connection.sendall(b"+OK\r\n")
                if b"INFO" in data:
                    connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    evaluator = Evaluator(None, (f"redis://127.0.0.1:{server.getsockname()[1]}",), ())
    try:
        [shard] = evaluator.tick().snapshot.shards
    finally:
        evaluator.close()
        server.close()
    assert not shard.up
    assert shard.reason in reasons.ALL


@pytest.mark.parametrize("text", ["max number of clients reached", "LOADING in progress"])
def test_a_server_that_has_no_time_is_still_valkey(text):
    assert reason_of(redis.exceptions.ResponseError(text)) == reasons.UNREACHABLE
