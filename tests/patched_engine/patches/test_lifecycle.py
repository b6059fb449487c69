"""The patched engine with each way of being told where L2 is, and at each moment of its life."""

from __future__ import annotations

import json

import pytest
import redis

from tests.patched_engine.patches import programs
from tests.patched_engine.patches.engine import CHUNKS, LENGTH
from tests.patched_engine.resp.real_servers import real_server
from tests.servers import valkey_server


def is_whole(found):
    return found["loaded"] == LENGTH and found["equal"]


@pytest.mark.parametrize("version", ["0.5.5", pytest.param("0.5.6", marks=pytest.mark.soak)])
def test_a_life(tmp_path, version):
    with (
        real_server("valkey 9.1.2", tmp_path, tls=True) as front,
        valkey_server() as plain,
        valkey_server() as second,
        valkey_server() as health,
        valkey_server() as auth,
    ):
        with redis.Redis(port=auth) as server:
            server.config_set("requirepass", "secret")
        ports = {
            "plain": plain,
            "second": second,
            "health": health,
            "auth": auth,
            "tls": front.port,
            "ca": str(tmp_path / "ca.pem"),
        }
        found = programs.run("lifecycle", json.dumps(ports), folder=tmp_path, version=version)
    assert found is not None and found["faults"] == {}

    lines = found["settings"]["lines"]
    for name, words in {
        "unfull": "save_unfull_chunk true does not go with resp://",
        "meta": "save_chunk_meta true does not go with resp://",
        "serde": "remote_serde cachegen does not go with resp://",
        "threads": "resp_num_threads 'many': give a whole number from 1 to 1024",
        "no threads": "resp_num_threads 0: give a whole number",
        "option": "unknown option 'dba'",
        "ca": "ca=/no/such.pem: No such file",
        "host": "no host: give resp://HOST:PORT",
    }.items():
        assert words in lines[name] and "\n" not in lines[name], name
    assert is_whole(found["settings"]["bare"])
    assert found["other-scheme"] == {"l2": "RemoteBackend", "connection": False}

    assert is_whole(found["tls"]["trusted"])
    assert found["tls"]["untrusted"]["loaded"] == 0
    assert found["tls"]["untrusted"]["seconds"] < 1.0
    assert is_whole(found["auth"]["extra"]) and is_whole(found["auth"]["environment"])
    assert found["auth"]["wrong"]["loaded"] == found["auth"]["wrong"]["found"] == 0

    assert found["forked"]["child"] == CHUNKS and found["forked"]["parent"] == [CHUNKS]
    assert is_whole(found["forked"])
    closed = found["closed-during-loads"]
    assert closed["wrong"] == closed["hang"] == []
    assert closed["done"] > 0 and closed["left_bytes"] == 0
    assert found["closed-engine"]["seconds"] < 5.0 and found["closed-engine"]["tasks"] == 0
    assert is_whole(found["two-engines"]["first"]) and is_whole(found["two-engines"]["second"])

    again = found["made-again"]
    assert is_whole(again["before"]) and is_whole(again["after"])
    assert again["recreated"] == again["created"] == {"RemoteBackend": "RespBackend"}
    assert again["without"]["loaded"] == 0
    assert is_whole(again["elsewhere"]) and again["there"] == CHUNKS

    assert found["health"] == {
        "at first": True,
        "after misses": True,
        "refused": False,
        "still refused": False,
        "back": True,
    }
