"""Shards that answer, refuse, freeze or are something else; and that none of them delays a tick."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest
import redis

from exporters import reasons
from exporters.readers import valkey
from exporters.readers.valkey import LATER_WAIT_SECONDS, Shards
from tests.servers import free_port, valkey_server


def _read(shards):
    began = time.monotonic()
    found, unseen = shards.read(shards.begin())
    return found, unseen, time.monotonic() - began


@contextlib.contextmanager
def _answering(answer: bytes | None):
    """A TCP server that answers each read with the same bytes, or accepts and never does."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                held.append(client)
                if answer is not None:
                    client.recv(4096)
                    client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        for client in held:
            client.close()


def test_a_shard_that_answers():
    with valkey_server() as port:
        shards = Shards([f"resp://127.0.0.1:{port}"])
        [shard], unseen, _ = _read(shards)
        assert shard.up and shard.url == f"resp://127.0.0.1:{port}"
        assert "used_memory" in shard.info
        assert unseen == []
        [again], _, seconds = _read(shards)
        assert again.up and seconds < 1
        with redis.Redis(port=port) as client:
            assert sum(c["name"] == "stallscope" for c in client.client_list()) == 1
        shards.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, reasons.TIMEOUT),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", reasons.NOT_VALKEY),
        (b"-ERR unknown command\r\n" * 5, reasons.NOT_VALKEY),
        (b"-NOAUTH Authentication required.\r\n" * 5, reasons.AUTH),
        (b"$3\r\nfoo\r\n" * 5, reasons.NOT_VALKEY),
        (b"+OK\r\n" * 5, reasons.NOT_VALKEY),
    ],
)
def test_something_that_is_no_usable_shard(answer, reason):
    with _answering(answer) as url:
        shards = Shards([url])
        [shard], [unseen], seconds = _read(shards)
        assert (shard.up, shard.reason, unseen.reason) == (False, reason, reason)
        assert unseen.source == url
        assert unseen.detail and "\n" not in unseen.detail
        assert seconds < 2
        shards.close()


def test_nothing_listens():
    shards = Shards([f"127.0.0.1:{free_port()}"])
    [shard], _, seconds = _read(shards)
    assert shard.reason == reasons.CONNECTION_REFUSED
    assert seconds < 1


def test_a_name_that_is_none():
    shards = Shards(["redis://no-such-host.invalid:6379"])
    [shard], _, seconds = _read(shards)
    assert shard.reason in (reasons.UNREACHABLE, reasons.TIMEOUT)
    assert seconds < 2


@pytest.mark.parametrize("given", ["", "someone:wrong@"])
def test_a_server_that_wants_a_password(given):
    with valkey_server() as port:
        with redis.Redis(port=port) as client:
            client.config_set("requirepass", "right")
        shards = Shards([f"redis://{given}127.0.0.1:{port}"])
        [shard], [unseen], _ = _read(shards)
        assert shard.reason == reasons.AUTH
        assert "wrong" not in unseen.detail + unseen.source
        shards.close()
        right = Shards([f"redis://:right@127.0.0.1:{port}"])
        [shard], unseen, _ = _read(right)
        assert shard.up and unseen == []
        right.close()


def test_a_wrong_url_is_one_line_and_the_others_are_asked():
    with valkey_server() as port:
        shards = Shards(["http://u:s3cret@x", f"127.0.0.1:{port}"])
        [shard], [unseen], _ = _read(shards)
        assert shard.up
        assert unseen.reason == reasons.BAD_URL
        assert "s3cret" not in unseen.detail + unseen.source
        shards.close()


def test_a_shard_that_freezes_and_comes_back():
    """One tick may still show the last answer; then it is a timeout, and ticks stay short."""
    with valkey_server() as port:
        with redis.Redis(port=port) as client:
            pid = client.info()["process_id"]
        shards = Shards([f"127.0.0.1:{port}"])
        assert _read(shards)[0][0].up
        os.kill(pid, signal.SIGSTOP)
        try:
            frozen_at = time.monotonic()
            while _read(shards)[0][0].up:
                assert time.monotonic() - frozen_at < 2.5
                time.sleep(0.1)
            assert _read(shards)[0][0].reason == reasons.TIMEOUT
            assert _read(shards)[2] < LATER_WAIT_SECONDS + 0.5
        finally:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 4
        while not _read(shards)[0][0].up:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        shards.close()


@pytest.mark.parametrize(("limit_seconds", "up"), [(1.0, True), (0.1, False)])
def test_an_answer_that_drips_in_is_as_old_as_its_question(monkeypatch, limit_seconds, up):
    monkeypatch.setattr(valkey, "ASK_TIMEOUT_SECONDS", limit_seconds)
    body = b"redis_version:7.0.15\r\nrun_id:a\r\n"
    listening = socket.create_server(("127.0.0.1", 0))

    def drip():
        client, _ = listening.accept()
        with client, contextlib.suppress(OSError):
            for asked in iter(lambda: client.recv(4096), b""):
                if b"\r\nINFO\r\n" not in asked:  # nor CLIENT SETINFO
                    client.sendall(b"+OK\r\n" * asked.count(b"*"))
                    continue
                for byte in b"$%d\r\n%b\r\n" % (len(body), body):
                    client.sendall(bytes((byte,)))
                    time.sleep(0.4 / len(body))

    threading.Thread(target=drip, daemon=True).start()
    shards = Shards([f"127.0.0.1:{listening.getsockname()[1]}"])
    [shard], _, _ = _read(shards)
    shards.close()
    listening.close()
    assert (shard.up, shard.reason) == (up, "" if up else reasons.TIMEOUT)
    assert not up or shard.took_seconds >= 0.4


def test_many_dead_ones_cost_no_more_than_one():
    """Frozen, refused and unknown together: still one deadline, and no thread is left behind."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(_answering(None)) for _ in range(8)]
        shards = Shards([*urls, f"127.0.0.1:{free_port()}"])
        found, _, seconds = _read(shards)
        assert len(found) == 9 and not any(s.up for s in found)
        assert seconds < 2
        before = threading.active_count()
        for _ in range(10):
            _read(shards)
        assert threading.active_count() <= before + 9
        shards.close()


def test_the_io_threads_are_asked_once_in_a_servers_life():
    """Told where CONFIG may be run; where only PING and INFO may, that costs nothing else, and the
    refusals do not fill the ACL LOG."""
    with valkey_server("--io-threads", "2") as port, redis.Redis(port=port) as client:
        client.execute_command("ACL SETUSER reader on >pass ~* -@all +ping +info")
        for given, expected in (("", 2), ("reader:pass@", None)):
            shards = Shards([f"redis://{given}127.0.0.1:{port}"])
            for _ in range(3):
                [shard], unseen, _ = _read(shards)
                assert (shard.up, shard.io_threads, unseen) == (True, expected, [])
            shards.close()
        denied = [e for e in client.acl_log() if e["object"] == "config|get"]
        assert [e["count"] for e in denied] == [1]
