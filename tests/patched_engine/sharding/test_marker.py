"""The mark of a rank's shard, on real Valkey: mine, another's, nobody's, and none to be asked."""

from __future__ import annotations

import logging
import time

import pytest
import redis

from patched_engine.resp.url import parse_endpoint
from patched_engine.sharding import marker
from patched_engine.sharding.settings import ShardingRefused
from tests.patched_engine.sharding.pod import until
from tests.patched_engine.sharding.shards import shards
from tests.servers import free_port, valkey_server


def endpoint(port: int, **rest: str):
    return parse_endpoint(f"resp://127.0.0.1:{port}", **{"username": "", "password": "", **rest})


@pytest.fixture(scope="module")
def port():
    with valkey_server() as running:
        yield running


@pytest.fixture
def server(port):
    with redis.Redis(port=port) as client:
        client.flushall()
        yield client


def test_a_shard_without_one_is_marked_and_then_mine(port, server):
    for _ in range(2):
        assert marker.check(endpoint(port), 3, 8) == ""
        assert server.get(marker.KEY) == marker.mark(3, 8)
        assert len(marker.mark(3, 8)) == marker.SIZE_BYTES


@pytest.mark.parametrize(("rank", "width"), [(2, 8), (3, 4), (3, 16)])
def test_another_ranks_or_another_number_of_ranks_is_refused(port, server, rank, width):
    server.set(marker.KEY, marker.mark(rank, width))
    with pytest.raises(ShardingRefused) as refused:
        marker.check(endpoint(port), 3, 8)
    line = str(refused.value)
    assert f"127.0.0.1:{port}" in line and "this is rank 3 of 8" in line and "\n" not in line
    assert f'"rank": {rank}' in line and f'"world_size": {width}' in line
    assert server.get(marker.KEY) == marker.mark(rank, width)  # left as it was


@pytest.mark.parametrize("value", [b"", b"somebody else's", b"x" * 256, b"\xff\n" * 128])
def test_a_value_that_is_no_mark_is_refused_in_one_line(port, server, value):
    server.set(marker.KEY, value)
    with pytest.raises(ShardingRefused) as refused:
        marker.check(endpoint(port), 0, 2)
    assert "\n" not in str(refused.value) and str(port) in str(refused.value)


def test_a_key_of_another_type_is_not_mine(port, server):
    server.rpush(marker.KEY, "a")
    with pytest.raises(ShardingRefused, match="that is not ours"):
        marker.check(endpoint(port), 0, 2)


def test_a_server_that_takes_no_writes_is_not_known(port, server):
    server.config_set("maxmemory-policy", "noeviction")
    server.config_set("maxmemory", "1")
    try:
        assert "OOM" in marker.check(endpoint(port), 0, 2)
    finally:
        server.config_set("maxmemory", "0")


def test_with_a_password():
    with valkey_server() as port:
        with redis.Redis(port=port) as client:
            client.config_set("requirepass", "secret")
        assert marker.check(endpoint(port, password="secret"), 0, 2) == ""
        for wrong in ("wrong", ""):
            why = marker.check(endpoint(port, password=wrong), 0, 2)
            assert "AUTH" in why or "WRONGPASS" in why, why
        with pytest.raises(ShardingRefused) as refused:
            marker.check(endpoint(port, password="secret"), 1, 2)
        assert "secret" not in str(refused.value)


def test_no_server_is_no_answer_in_time():
    begun = time.monotonic()
    assert "refused" in marker.check(endpoint(free_port()), 0, 2).lower()
    assert time.monotonic() - begun < 3


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(marker, "_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(marker, "_KEPT_SECONDS", 0.05)


class Use:
    """What the watch says to the engine."""

    def __init__(self) -> None:
        self.said: list[bool] = []

    def __call__(self, may_use: bool) -> None:
        self.said.append(may_use)


def test_a_shard_that_comes_later_is_used_once_it_is_known_to_be_mine(quick):
    use = Use()
    with shards(1) as store:
        store.stop(0)
        watch = marker.Watch(parse_endpoint(f"resp://{store.hosts[0]}:{store.port}"), 0, 1)
        watch.begin()
        watch.tell(use)
        try:
            assert use.said == [False]
            assert store.start(0)
            until(lambda: use.said == [False, True], 5, "it is not used")
            with store.client(0) as client:
                assert client.get(marker.KEY) == marker.mark(0, 1)
                # It loses its memory: the mark comes back before another pod can take it.
                client.flushall()
                until(lambda: client.get(marker.KEY) == marker.mark(0, 1), 5, "no mark")
            assert use.said == [False, True]
        finally:
            watch.end()


def test_a_shard_that_turns_out_to_be_anothers_is_not_used(quick, caplog):
    use = Use()
    caplog.set_level(logging.WARNING, "stallscope")
    with shards(1) as store:
        store.stop(0)
        watch = marker.Watch(parse_endpoint(f"resp://{store.hosts[0]}:{store.port}"), 0, 2)
        watch.begin()
        watch.tell(use)
        try:
            assert "is not used before it is known whose shard it is" in caplog.text
            assert store.start(0)
            with store.client(0) as client:
                client.set(marker.KEY, marker.mark(1, 2))
                until(lambda: "but this is rank 0 of 2" in caplog.text or use.said[-1], 5, "silent")
                client.set(marker.KEY, marker.mark(1, 2))
                until(lambda: use.said[-1] is False, 5, "it is used")
                time.sleep(0.3)
                assert use.said[-1] is False
                assert caplog.text.count("but this is rank 0 of 2") <= 2  # not once a look
                # Set right, it is used again.
                client.delete(marker.KEY)
                until(lambda: use.said[-1] is True, 5, "it is not used again")
        finally:
            watch.end()


def test_a_watch_refuses_at_once_what_it_can_see_at_once(port, server):
    server.set(marker.KEY, marker.mark(1, 2))
    with pytest.raises(ShardingRefused):
        marker.Watch(endpoint(port), 0, 2).begin()
