"""What a shard tells beyond INFO, from real servers: keys by rank, command log, what is denied."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import time

import pytest
import redis

from exporters import reasons
from exporters.readers.shard_access import Access
from exporters.readers.shard_acl import RULES, USER, setuser
from exporters.readers.shard_signals import OTHER_RANK, SCAN_KEYS, rank_in
from exporters.readers.valkey import Shards
from tests.patched_engine.resp.real_servers import real_server
from tests.servers import free_port, valkey_binary, valkey_server

PASSWORD = "not-to-be-told"
STEP_MOST_SECONDS = 0.01  # of the main thread, a second: 1%


def _key(rank, number, world=4):
    return f"org/a@model@{world}@{rank}@{number:016x}@bfloat16"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        (_key(3, 1), "3"),
        ("m@8@7@00ff@float16@12", "7"),  # a layer
        ("m@8@0@00ff@float16@tenant%a", "0"),
        (b"m@2@1@00ff@bfloat16", "1"),
        ("m@2@2@00ff@bfloat16", OTHER_RANK),  # no rank of two
        ("m@99999@70@00ff@bfloat16", OTHER_RANK),
        ("stallscope:shard", OTHER_RANK),
        ("@@@@", OTHER_RANK),
        (b"\xff\xfe@x", OTHER_RANK),
        ("", OTHER_RANK),
    ],
)
def test_the_rank_is_in_a_chunks_name(name, rank):
    assert rank_in(name) == rank


def _read(shards):
    return shards.read(shards.begin())


def _scanned(shards, seconds=20.0):
    deadline = time.monotonic() + seconds
    while (sample := _read(shards)[0][0].key_sample) is None:
        assert time.monotonic() < deadline
    return sample


def test_all_keys_are_counted_by_rank_and_none_is_touched():
    with valkey_server() as port, redis.Redis(port=port) as client:
        with client.pipeline(transaction=False) as pipeline:
            for number in range(4 * SCAN_KEYS):
                pipeline.set(_key(number % 4, number), b"x" * 1000)
            pipeline.set("stallscope:shard", b"1")
            pipeline.execute()
        client.config_resetstat()
        shards = Shards([f"redis://127.0.0.1:{port}"], with_samples=True)
        sample = _scanned(shards)
        shards.close()
        assert sample.keys == {**{str(r): SCAN_KEYS for r in range(4)}, OTHER_RANK: 1}
        assert all(sample.bytes[str(r)] >= 1000 * SCAN_KEYS for r in range(4))
        info = client.info("all")
        assert info["keyspace_hits"] == info["keyspace_misses"] == 0
        steps = info["cmdstat_scan"]["calls"]
        spent = info["cmdstat_scan"]["usec"] + info["cmdstat_memory|usage"]["usec"]
        assert steps >= 4 and spent / 1e6 / steps < STEP_MOST_SECONDS


def test_its_keys_stay_as_old_as_they_were():
    with (
        valkey_server("--maxmemory-policy", "allkeys-lru") as port,
        redis.Redis(port=port) as client,
    ):
        client.set(_key(0, 0), b"x")
        time.sleep(2.1)  # the server counts whole seconds
        shards = Shards([f"redis://127.0.0.1:{port}"], with_samples=True)
        _scanned(shards)
        shards.close()
        assert client.object("idletime", _key(0, 0)) >= 1


def test_without_samples_no_key_is_looked_for():
    with valkey_server() as port, redis.Redis(port=port) as client:
        shards = Shards([f"redis://127.0.0.1:{port}"])
        [shard], unseen = _read(shards)
        shards.close()
        assert shard.io_threads == 1 and shard.key_sample is None and unseen == []
        assert "cmdstat_scan" not in client.info("commandstats")


def test_the_command_log_is_counted():
    with valkey_server() as port, redis.Redis(port=port) as client:
        client.config_set("slowlog-log-slower-than", 0)
        client.ping()
        shards = Shards([f"redis://127.0.0.1:{port}"], with_samples=True)
        [shard], _ = _read(shards)
        shards.close()
        assert shard.log_entries["slow"] >= 1


def _as_user(port, *denied):
    """The shards as the shipped user sees them, less some permissions."""
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    rules = [rule for rule in setuser(digest).split()[2:] if rule not in denied]
    with redis.Redis(port=port) as admin:
        admin.execute_command("ACL", "SETUSER", *rules)
        admin.set(_key(1, 1), b"x")
    return Shards([f"redis://127.0.0.1:{port}"], Access(USER, PASSWORD), with_samples=True)


def test_the_shipped_user_sees_everything():
    with valkey_server() as port:
        shards = _as_user(port)
        sample = _scanned(shards)
        [shard], unseen = _read(shards)
        shards.close()
        assert unseen == [] and shard.denied == ()
        assert sample.keys == {"1": 1} and shard.io_threads == 1 and "slow" in shard.log_entries
        with redis.Redis(port=port) as admin:
            assert admin.execute_command("ACL", "LOG") == []


@pytest.mark.parametrize(
    ("denied", "signal"),
    [
        (("+config|get",), "io_threads"),
        (("+slowlog|len", "+commandlog|len"), "command_log"),
        (("+scan",), "key_sample"),
        (("+memory|usage",), "key_sample"),
    ],
)
def test_what_is_denied_is_unseen_and_costs_nothing_else(denied, signal):
    with valkey_server() as port:
        shards = _as_user(port, *denied)
        for _ in range(4):
            [shard], unseen = _read(shards)
        shards.close()
        assert shard.up and "used_memory" in shard.info
        assert shard.denied == (signal,)
        [one] = unseen
        assert (one.source, one.reason) == (f"redis://127.0.0.1:{port} {signal}", reasons.NOPERM)
        assert "\n" not in one.detail and PASSWORD not in f"{one}"
        with redis.Redis(port=port) as admin:  # asked once in the server's life
            assert len(admin.execute_command("ACL", "LOG")) == 1


def test_the_rules_fit_an_older_server_without_the_later_ones(tmp_path):
    with (
        real_server("redis-server", tmp_path) as server,
        redis.Redis(port=server.port) as admin,
    ):
        admin.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *RULES)
        shards = Shards(
            [f"redis://127.0.0.1:{server.port}"], Access(USER, PASSWORD), with_samples=True
        )
        [shard], unseen = _read(shards)
        shards.close()
        assert shard.up and unseen == [] and set(shard.log_entries) == {"slow"}


@contextlib.contextmanager
def _sentinel(folder):
    (folder / "sentinel.conf").write_text("")  # which it writes to
    port = free_port()
    command = [valkey_binary(), str(folder / "sentinel.conf"), "--sentinel", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        with redis.Redis(port=port) as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.RedisError):
                    client.ping()
                    break
        yield port
    finally:
        process.kill()
        process.wait()


def _refused(port):
    shards = Shards([f"redis://127.0.0.1:{port}"])
    [shard], [unseen] = _read(shards)
    shards.close()
    assert not shard.up and shard.reason == unseen.reason and unseen.mend
    return shard.reason


def test_a_sentinel_is_refused_by_name(tmp_path):
    with _sentinel(tmp_path) as port:
        assert _refused(port) == reasons.SENTINEL


def test_a_cluster_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a file of its own
    with valkey_server("--cluster-enabled", "yes") as port:
        assert _refused(port) == reasons.CLUSTER
