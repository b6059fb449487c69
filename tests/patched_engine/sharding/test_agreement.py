"""Workers agree through torch's real stores, in real processes, or none of them starts."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from patched_engine.sharding import agreement
from patched_engine.sharding.settings import SWITCH, ShardingRefused

dist = pytest.importorskip("torch.distributed")

DEADLINE_SECONDS = 0.8  # for one that never comes
PATIENT_SECONDS = 20.0  # where all come: a busy machine starts processes slowly


def said(is_wanted: bool = True, **other: Any) -> dict[str, object]:
    config = SimpleNamespace(
        chunk_size=256,
        remote_url="resp://valkey-{rank}:6379",
        max_local_cpu_size=80.0,
        enable_async_loading=True,
    )
    facts = SimpleNamespace(world_size=2)
    return {**agreement.statement(is_wanted, config, facts), **other}


def run(tmp_path, kind: str, everyone: list[dict[str, object] | None]) -> list[tuple[str, float]]:
    """Each statement in a process of its own (None: it never comes): its refusal, its seconds."""
    ranks = len(everyone)
    deadline_seconds = DEADLINE_SECONDS if None in everyone else PATIENT_SECONDS
    # In a process of its own: a fork beside the server's threads may inherit a lock that they hold.
    port, server = _server() if kind == "tcp" else (0, 0)
    pids = []
    for rank, one in enumerate(everyone):
        if one is None:
            continue
        pid = os.fork()
        if pid == 0:
            try:
                begun, refusal = time.monotonic(), ""
                if port:
                    store: Any = dist.TCPStore("127.0.0.1", port, is_master=False)
                else:
                    store = dist.FileStore(str(tmp_path / "store"), ranks)
                try:
                    agreement.agree(store, rank, ranks, one, "engine/0/0", deadline_seconds)
                except ShardingRefused as error:
                    refusal = str(error)
                answer = [refusal, time.monotonic() - begun]
                (tmp_path / f"said-{rank}").write_text(json.dumps(answer))
                # A store's file or server must outlive the slowest reader.
                store.wait([f"stallscope/sharding/engine/0/0/{rank}"], timedelta(seconds=5))
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    if server:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    return [
        tuple(json.loads((tmp_path / f"said-{rank}").read_text()))
        for rank, one in enumerate(everyone)
        if one is not None
    ]


def _server() -> tuple[int, int]:
    """A store's server: its port and its pid."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True)
            os.write(writer, str(store.port).encode())
            time.sleep(2 * PATIENT_SECONDS)
        finally:
            os._exit(0)
    os.close(writer)
    port = int(os.read(reader, 16) or b"0")
    os.close(reader)
    assert port, "the store's server did not start"
    return port, pid


STORES = pytest.mark.parametrize("kind", ["tcp", "file"])


@STORES
def test_ranks_that_say_the_same_go_on_at_once(tmp_path, kind):
    answers = run(tmp_path, kind, [said(), said(), said()])
    assert [refusal for refusal, _ in answers] == [""] * 3


@STORES
@pytest.mark.parametrize(
    ("name", "value"),
    [
        (SWITCH, False),
        ("remote_url", "resp://other-{rank}:6379"),
        ("chunk_size", 512),
        ("max_local_cpu_size", 10.0),
        ("enable_async_loading", False),
        ("schema", "another/2"),
        ("world_size", 4),
    ],
)
def test_one_that_disagrees_is_named_by_all(tmp_path, kind, name, value):
    answers = run(tmp_path, kind, [said(), said(), said(**{name: value})])
    for refusal, _ in answers[:2]:
        assert "rank 2 has" in refusal and name in refusal and repr(value) in refusal
        assert "\n" not in refusal
    assert "rank 2 has" in answers[2][0] and "rank 0 has" in answers[2][0]


@STORES
def test_one_that_never_comes_is_named_within_the_deadline(tmp_path, kind):
    answers = run(tmp_path, kind, [said(), None, said()])
    for refusal, seconds in answers:
        assert "rank 1 did not say within 0.8 s" in refusal and "\n" not in refusal
        assert DEADLINE_SECONDS * 0.5 < seconds < DEADLINE_SECONDS + 3


def test_ranks_that_do_not_shard_may_differ_in_all_else(tmp_path):
    everyone = [said(False), said(False, remote_url="resp://mine:1", chunk_size=64)]
    assert [refusal for refusal, _ in run(tmp_path, "file", everyone)] == ["", ""]


def test_a_rank_with_the_switch_off_does_not_start_among_others_that_shard(tmp_path):
    first, second = run(tmp_path, "file", [said(False), said(True)])
    assert "rank 1 has True" in first[0] and "rank 0 has False" in second[0]


def test_a_rank_with_the_switch_off_goes_on_alone(tmp_path):
    ((refusal, _),) = run(tmp_path, "file", [said(False), None])
    assert refusal == ""
