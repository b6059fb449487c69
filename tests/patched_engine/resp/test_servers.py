"""Real servers: three versions, io-threads 1 and 4, TLS, RESP2 and RESP3, every kind of address."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from patched_engine.resp import ConnectError, Deadlines, EndpointError, Outcome, RespClient
from tests.patched_engine.resp.conftest import MakeClient
from tests.patched_engine.resp.real_servers import KINDS, certificates, real_server

SIZES = [0, 1, 63, 1000, 4095, 4096, 16_383, 16_384, 100_000, 3_000_000]

PATIENT = Deadlines(10.0, 20.0, 30.0)  # it is not speed that is tried


def value(size: int, seed: int) -> bytes:
    unit = bytes((i * 31 + seed) % 256 for i in range(256))
    return (unit * (size // 256 + 1))[:size]


def round_trip(client: RespClient) -> None:
    """SET, GET, EXISTS and DEL of many sizes at once, with misses and wrong sizes in between."""
    keys = [f"key {i}" for i in range(len(SIZES))]
    values = [value(size, i) for i, size in enumerate(SIZES)]
    assert {r.outcome for r in client.set(keys, values)} == {Outcome.VALUE}
    buffers = [bytearray(b"\xee" * size) for size in SIZES]
    asked = [name for key in keys for name in (key, "absent", key)]
    given = [b for buffer in buffers for b in (buffer, bytearray(10), bytearray(len(buffer) + 1))]
    wanted = [Outcome.VALUE, Outcome.MISS, Outcome.WRONG_SIZE] * len(keys)
    assert [r.outcome for r in client.get(asked, given)] == wanted
    assert buffers == values
    assert [r.outcome for r in client.exists([keys[0], "absent"])] == [Outcome.VALUE, Outcome.MISS]
    assert {r.outcome for r in client.delete(keys)} == {Outcome.VALUE}
    assert {r.outcome for r in client.exists(keys) + client.delete(keys)} == {Outcome.MISS}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("io_threads", ["1", "4"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_server(kind: str, io_threads: str, tls: bool, tmp_path: Path) -> None:
    with real_server(kind, tmp_path, "--io-threads", io_threads, tls=tls) as server:
        for engine in ("auto",) if tls else ("compiled", "pure"):
            for protocol in ("2", "3"):
                mark = "&" if "?" in server.url else "?"
                url = f"{server.url}{mark}protocol={protocol}"
                with RespClient(url, connections=3, engine=engine, deadlines=PATIENT) as client:
                    assert client.check() == "PONG"
                    round_trip(client)


def test_tls_does_not_trust_just_anyone(tmp_path: Path) -> None:
    with real_server("redis 7.0.15", tmp_path, tls=True) as server:
        for query, words in (
            ("", "check ca"),
            (f"?ca={certificates(tmp_path)['ca.pem']}", "check ca"),  # another authority by now
        ):
            with RespClient(f"resps://127.0.0.1:{server.port}{query}") as client:
                with pytest.raises(ConnectError, match=words):
                    client.check()
                (result,) = client.exists(["a"])
                assert result.outcome is Outcome.UNREACHABLE
        with RespClient(f"resps://127.0.0.1:{server.port}?verify=no") as client:
            assert client.check() == "PONG"


def test_a_plain_server_under_resps_is_said_in_one_line(tmp_path: Path) -> None:
    with (
        real_server("valkey 9.1.2", tmp_path) as server,
        RespClient(f"resps://127.0.0.1:{server.port}?verify=no") as client,
    ):
        with pytest.raises(ConnectError, match="is this a TLS port") as caught:
            client.check()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_authentication(
    make_client: MakeClient, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--requirepass", "all", "--user", "kv", "on", ">secret", "~*", "&*", "+@all")
    with real_server("redis 7.0.15", tmp_path, *options) as server:
        host = f"127.0.0.1:{server.port}?protocol={protocol}"
        for credentials in ("kv:secret@", ":all@", "default:all@"):
            round_trip(make_client(f"resp://{credentials}{host}"))
        monkeypatch.setenv("LMCACHE_RESP_USERNAME", "kv")
        monkeypatch.setenv("LMCACHE_RESP_PASSWORD", "secret")
        round_trip(make_client(f"resp://{host}"))
        (result,) = make_client(f"resp://kv:wrong@{host}").exists(["a"])
        assert result.outcome is Outcome.UNREACHABLE
        assert "WRONGPASS" in result.detail
        assert "wrong" not in result.detail.replace("WRONGPASS", "").split("password")[0]
        monkeypatch.undo()
        (result,) = make_client(f"resp://127.0.0.1:{server.port}").exists(["a"])
        assert (result.outcome, result.code) == (Outcome.REFUSED, "NOAUTH")


def test_ipv6_unix_sockets_and_databases(make_client: MakeClient, tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    path = tmp_path / "s"
    with real_server(
        "valkey 9.1.2", tmp_path, "--bind", "127.0.0.1 ::1", "--unixsocket", str(path)
    ) as s:
        round_trip(make_client(f"resp://[::1]:{s.port}", connections=2))
        round_trip(make_client(f"resp+unix://{path}?db=3&protocol=3", connections=2))
        two, three = make_client(f"{s.url}/2"), make_client(f"{s.url}?db=3")
        assert two.set(["k"], [b"v"])[0].ok
        assert three.exists(["k"])[0].is_miss
        assert make_client(f"resp+unix://{path}?db=2").exists(["k"])[0].ok
        (result,) = make_client(f"{s.url}/99").exists(["k"])
        assert result.outcome is Outcome.UNREACHABLE
        assert "SELECT was refused" in result.detail


@pytest.mark.parametrize("name", ["ca", "cert"])
def test_a_bad_certificate_file_is_said_before_any_call(name: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("not a certificate")
    for path in (bad, tmp_path / "absent.pem"):
        with pytest.raises(EndpointError, match=f"{name}=.*pem") as caught:
            RespClient(f"resps://127.0.0.1:1?{name}={path}")
        assert "\n" not in str(caught.value)
