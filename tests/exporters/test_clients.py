"""CLIENT LIST of Valkey 9.1.2 and redis 7.0.15, real and captured; what is asked, and how often."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest
import redis

from exporters.readers.clients import WHOLE_LIST_SECONDS, ClientLister, parse_clients
from exporters.readers.valkey import Shards
from exporters.snapshot import ShardQuestion
from tests.servers import free_port, valkey_server

# Lines of a redis-server 7.0.15 and a Valkey 9.1.2: our own, one that is idle after a GET of a
# chunk, one that does not read its reply, one that sent half a command.
REDIS_7_0_15 = """\
id=3 addr=127.0.0.1:46320 laddr=127.0.0.1:7399 fd=7 name= age=1 idle=0 flags=N db=0 sub=0 psub=0 \
ssub=0 multi=-1 qbuf=26 qbuf-free=20448 argv-mem=10 multi-mem=0 rbs=1024 rbp=0 obl=0 oll=0 omem=0 \
tot-mem=22298 events=r cmd=client|list user=default redir=-1 resp=3
id=4 addr=127.0.0.1:46334 laddr=127.0.0.1:7399 fd=8 name= age=1 idle=1 flags=N db=0 sub=0 psub=0 \
ssub=0 multi=-1 qbuf=0 qbuf-free=20474 argv-mem=0 multi-mem=0 rbs=16384 rbp=16384 obl=0 oll=0 \
omem=0 tot-mem=37632 events=r cmd=get user=default redir=-1 resp=3
id=5 addr=127.0.0.1:46342 laddr=127.0.0.1:7399 fd=9 name= age=1 idle=1 flags=N db=0 sub=0 psub=0 \
ssub=0 multi=-1 qbuf=0 qbuf-free=20474 argv-mem=0 multi-mem=0 rbs=1024 rbp=0 obl=0 oll=1 \
omem=12582936 tot-mem=12605208 events=rw cmd=get user=default redir=-1 resp=2
id=6 addr=127.0.0.1:46354 laddr=127.0.0.1:7399 fd=11 name= age=1 idle=1 flags=N db=0 sub=0 psub=0 \
ssub=0 multi=-1 qbuf=2 qbuf-free=20472 argv-mem=3 multi-mem=0 rbs=1024 rbp=0 obl=0 oll=0 omem=0 \
tot-mem=22283 events=r cmd=NULL user=default redir=-1 resp=2
"""
VALKEY_9_1_2 = """\
id=4 addr=[::1]:48728 laddr=[::1]:52943 fd=9 name= age=1 idle=0 flags=N capa= db=0 sub=0 psub=0 \
ssub=0 multi=-1 watch=0 qbuf=26 qbuf-free=16360 argv-mem=10 multi-mem=0 rbs=1032 rbp=0 obl=0 oll=0 \
omem=0 tot-mem=18034 events=r cmd=client|list user=default redir=-1 resp=3 lib-name=redis-py \
lib-ver=8.1.0 tot-net-in=12400314 tot-net-out=1371 tot-cmds=5
id=5 addr=127.0.0.1:48740 laddr=127.0.0.1:52943 fd=10 name= age=91 idle=81 flags=N capa= db=0 \
sub=0 psub=0 ssub=0 multi=-1 watch=0 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=1032 rbp=0 \
obl=0 oll=0 omem=0 tot-mem=1616 events=r cmd=get user=default redir=-1 resp=3 lib-name=redis-py \
lib-ver=8.1.0 tot-net-in=249 tot-net-out=12400302 tot-cmds=4
id=7 addr=127.0.0.1:48748 laddr=127.0.0.1:52943 fd=12 name= age=1 idle=1 flags=N capa= db=0 sub=0 \
psub=0 ssub=0 multi=-1 watch=0 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=16392 rbp=16392 \
obl=36 oll=0 omem=12400013 tot-mem=12416989 events=rw cmd=get user=default redir=-1 resp=2 \
lib-name= lib-ver= tot-net-in=20 tot-net-out=4157952 tot-cmds=1
id=8 addr=127.0.0.1:48758 laddr=127.0.0.1:52943 fd=13 name= age=1 idle=1 flags=N capa= db=0 sub=0 \
psub=0 ssub=0 multi=-1 watch=0 qbuf=2 qbuf-free=16384 argv-mem=3 multi-mem=0 rbs=1032 rbp=0 obl=0 \
oll=0 omem=0 tot-mem=18019 events=r cmd=NULL user=default redir=-1 resp=2 lib-name= lib-ver= \
tot-net-in=15 tot-net-out=0 tot-cmds=0
"""


@pytest.mark.parametrize(
    ("text", "commands"),
    [(REDIS_7_0_15, [None] * 4), (VALKEY_9_1_2, [5, 4, 1, 0])],
    ids=["redis 7.0.15", "valkey 9.1.2"],
)
def test_captured_lists(text, commands):
    found = parse_clients(text)
    assert [c.is_owed for c in found] == [True, False, True, True]
    assert [c.commands for c in found] == commands
    assert found[2].output_bytes + found[2].output_replies > 12_000_000
    assert (found[3].query_bytes, found[3].argument_bytes) == (2, 3)
    assert found[1].last_command == "get"


def test_addresses_and_idle_times():
    found = parse_clients(VALKEY_9_1_2)
    assert [c.address for c in found[:2]] == ["[::1]:48728", "127.0.0.1:48740"]
    assert found[1].idle_seconds == 81


@pytest.mark.parametrize("text", ["", "\n", "junk", "id=x", "a=b c=d", "id= addr=1:2"])
def test_anything_else_is_no_client(text):
    assert parse_clients(text) == ()


@contextlib.contextmanager
def _redis_7():
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server here")
    port = free_port()
    process = subprocess.Popen(
        [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port) as client:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["valkey", "redis 7"])
def port(request):
    with valkey_server() if request.param == "valkey" else _redis_7() as found:
        yield found


def _end(connection) -> str:
    host, number = connection.getsockname()[:2]
    return f"{host}:{number}"


def _ask(shards, question):
    [shard], _ = shards.read(shards.begin([question]))
    return shard


def test_a_real_server_says_what_it_owes_and_which_keys_are_there(port):
    url = f"redis://127.0.0.1:{port}"
    with (
        redis.Redis(port=port) as client,
        socket.create_connection(("127.0.0.1", port)) as idle,
        socket.create_connection(("127.0.0.1", port)) as deaf,
    ):
        client.set("chunk", b"x" * 12_400_000)
        idle.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert idle.recv(100) == b"+PONG\r\n"
        deaf.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nchunk\r\n")
        time.sleep(0.2)
        shards = Shards([url])
        question = ShardQuestion(url, (_end(idle), _end(deaf), "10.1.1.1:1"), ("chunk", "gone"))
        shard = _ask(shards, question)
        by_end = {c.address: c for c in shard.clients}
        assert by_end.keys() == {_end(idle), _end(deaf)}
        assert not by_end[_end(idle)].is_owed
        assert by_end[_end(deaf)].is_owed
        assert shard.keys == {"chunk": True, "gone": False}
        shards.close()


def test_a_shard_that_nobody_suspects_is_asked_for_nothing_more(port):
    with redis.Redis(port=port) as client:
        client.config_resetstat()
        shards = Shards([f"redis://127.0.0.1:{port}"])
        for _ in range(3):
            [shard], _ = shards.read(shards.begin())
        assert shard.clients is None and shard.keys == {}
        stats = client.info("commandstats")
        assert not [name for name in stats if "client|list" in name or "exists" in name]
        shards.close()


def test_the_whole_list_is_taken_once_and_then_ids_alone():
    asked: list[tuple[object, ...]] = []

    class Server:
        def execute_command(self, *words):
            asked.append(words[2:])
            return REDIS_7_0_15.encode()

    lister = ClientLister()
    ends = ["127.0.0.1:46334", "127.0.0.1:46342"]
    for at in (0.0, 1.0, 2.0, 2.0 * WHOLE_LIST_SECONDS):
        assert [c.id for c in lister.list(Server(), ends, at)] == [4, 5]
    assert asked == [(), ("ID", 4, 5), ("ID", 4, 5), ("ID", 4, 5)]
    asked.clear()
    with_new = [*ends, "127.0.0.1:9"]  # it opened another, or the server does not know it
    for at in (21.0, 22.0, 30.0, 31.1):
        lister.list(Server(), with_new, at)
    assert asked == [(), ("ID", 4, 5), ("ID", 4, 5), ()]


def test_a_user_who_may_not_list_clients_is_told_as_unseen():
    with valkey_server() as port, redis.Redis(port=port) as client:
        allowed = ("+info", "+exists", "+ping", "+client|setname", "+client|setinfo")
        client.execute_command("ACL", "SETUSER", "watcher", "on", ">pw", "~*", *allowed)
        shards = Shards([f"redis://watcher:pw@127.0.0.1:{port}"])
        shown = f"redis://127.0.0.1:{port}"
        shard = _ask(shards, ShardQuestion(shown, ("127.0.0.1:1",), ("k",)))
        assert shard.up and shard.clients is None and shard.keys == {"k": False}
        shards.close()


def test_questions_of_several_rules_are_one():
    with valkey_server() as port:
        url = f"redis://127.0.0.1:{port}"
        shards = Shards([url])
        questions = [ShardQuestion(url, (), ("a", "b")), ShardQuestion(url, (), ("b", "c"))]
        [shard], _ = shards.read(shards.begin(questions))
        assert list(shard.keys) == ["a", "b", "c"]
        shards.close()


def test_a_server_that_freezes_under_the_question_is_a_timeout():
    with valkey_server() as port, redis.Redis(port=port) as client:
        url = f"redis://127.0.0.1:{port}"
        pid = client.info()["process_id"]
        shards = Shards([url])
        assert shards.read(shards.begin())[0][0].up
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            while shards.read(shards.begin([ShardQuestion(url, (), ("a",))]))[0][0].up:
                assert time.monotonic() - began < 3
        finally:
            os.kill(pid, signal.SIGCONT)
        shards.close()


@pytest.mark.parametrize(
    ("template", "rank", "given", "same"),
    [
        ("resp://127.0.0.1:7001", 0, "redis://localhost:7001", True),
        ("resp://127.0.0.1:7001", 0, "redis://127.0.0.1:7002", False),
        ("resp://valkey-{rank}.cache:6379", 1, "valkey://valkey-1.cache:6379", True),
        ("resp://valkey-{rank}.cache:6379", 2, "valkey://valkey-1.cache:6379", False),
        ("resp://valkey-{rank}:6379", 1, "valkey://Valkey-1.cache.svc:6379", True),
        ("resp://valkey-1:6379", 1, "valkey://valkey-10:6379", False),
        ("resp://10.0.0.1:6379", 1, "valkey://10.0.0.1.x:6379", False),
        ("resp://valkey-{rank}:6379", None, "valkey://valkey-1:6379", False),
        ("unix:///a", 1, "unix:///a", True),
        ("unix:///a", 1, "unix:///b", False),
        ("lm://host:1", 1, "redis://host:1", False),
    ],
)
def test_which_shard_a_rank_uses(template, rank, given, same):
    assert bool(Shards([given]).url_of(template, rank)) == same
