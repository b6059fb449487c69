"""What a broken or hostile server does to a key, and that it does it to no other key."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from patched_engine.resp import ConnectError, Deadlines, Kind, Outcome, RespClient
from tests.patched_engine.resp.conftest import MakeClient
from tests.patched_engine.resp.fake_server import Peer, bulk, fake_server

VALUE = bytes(i * 7 % 251 for i in range(300))
SHORT = Deadlines(connect_seconds=1.0, operation_seconds=0.3, total_seconds=2.0)


def outcomes(
    client: object, keys: list[str], size: int = len(VALUE)
) -> tuple[list[str], list[bytes]]:
    buffers = [bytearray(b"\xee" * size) for _ in keys]
    results = client.get(keys, buffers)  # type: ignore[attr-defined]
    return [result.outcome.name for result in results], [bytes(buffer) for buffer in buffers]


def first_connection_is(bad: bytes) -> object:
    """Sends `bad` to the first connection's first GET and closes; later ones get the value."""

    def script(peer: Peer) -> None:
        while True:
            peer.command()
            if peer.number == 0:
                peer.send(bad)
                return
            peer.send(bulk(VALUE))

    return script


def test_closed_at_every_offset_is_that_keys_error_and_the_next_key_is_served(
    make_client: MakeClient,
) -> None:
    reply = bulk(VALUE)

    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            if key.startswith(b"cut"):
                peer.send(reply[: int(key[3:])])
                return
            peer.send(reply)

    with fake_server(script) as server:
        client = make_client(server.url)
        for at in range(len(reply)):
            got, buffers = outcomes(client, [f"cut{at}", "behind it", "and behind that"])
            assert got == ["LOST", "VALUE", "VALUE"], at
            assert buffers[1:] == [VALUE, VALUE]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00",
        b"\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$300",
        b"$abc\r\n",
        b"$-2\r\n",
        b"$ 300\r\n",
        b"$+300\r\n",
        b"$9223372036854775808\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b"*1\r\n$3\r\nfoo\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"#t\r\n",
        bulk(VALUE)[:-2] + b"xx",
        b"+" + b"x" * 70_000,
        b"!-1\r\n",
        b">1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    ],
)
def test_garbage_is_one_keys_error_and_ends_the_connection(
    make_client: MakeClient, garbage: bytes
) -> None:
    with fake_server(first_connection_is(garbage)) as server:  # type: ignore[arg-type]
        client = make_client(server.url)
        got, buffers = outcomes(client, ["bad", "next", "last"])
        assert got[0] in ("PROTOCOL", "LOST")  # LOST where it may yet have become a reply
        assert (got[1:], buffers[1:]) == (["VALUE", "VALUE"], [VALUE, VALUE])
        assert server.connections == 2


@pytest.mark.parametrize("length", [2**31, 2**31 - 1, 512 << 20])
def test_a_huge_length_is_not_read_for_and_not_allocated(
    make_client: MakeClient, length: int
) -> None:
    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            if key == b"huge":
                peer.send(b"$%d\r\n" % length)
                peer.until_gone()
                return
            peer.send(bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(server.url)
        begin = time.monotonic()
        got, buffers = outcomes(client, ["huge", "next"])
        assert time.monotonic() - begin < 2
        assert (got, buffers[1]) == (["WRONG_SIZE", "VALUE"], VALUE)
        assert server.connections == 2


def test_a_wrong_size_below_the_limit_is_read_past_on_the_same_connection(
    make_client: MakeClient,
) -> None:
    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            peer.send(bulk(b"x" * 3_000_000) if key == b"long" else bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(server.url)
        got, buffers = outcomes(client, ["long", "next"])
        assert (got, buffers[1]) == (["WRONG_SIZE", "VALUE"], VALUE)
        assert server.connections == 1


def test_an_answer_never_asked_for_is_not_taken_for_the_next_keys(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        peer.command()
        peer.send(bulk(VALUE), bulk(b"z" * len(VALUE)) if peer.number == 0 else b"")
        while True:
            peer.command()
            peer.send(bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(server.url)
        assert outcomes(client, ["first"]) == (["VALUE"], [VALUE])
        time.sleep(0.05)  # the stray answer arrives while nothing is asked
        assert outcomes(client, ["second"]) == (["VALUE"], [VALUE])
        assert server.connections == 2


def test_an_answer_sent_before_any_question_is_not_taken(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        if peer.number == 0:
            peer.send(bulk(b"z" * len(VALUE)))
        while True:
            peer.command()
            peer.send(bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(f"{server.url}")
        client.exists(["warm up: the connection is made, the stray answer is on it"])
        time.sleep(0.05)
        assert outcomes(client, ["key"]) == (["VALUE"], [VALUE])


def test_a_slow_drip_that_ends_in_time_is_a_value(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.command()
            reply = bulk(VALUE)
            peer.send(*(reply[i : i + 1] for i in range(len(reply))))

    with fake_server(script) as server:
        assert outcomes(make_client(server.url), ["a"]) == (["VALUE"], [VALUE])


@pytest.mark.parametrize("sent", [0, 1, 4, 6, 100, 305])
def test_a_stall_at_any_point_ends_at_the_operation_deadline(
    make_client: MakeClient, sent: int
) -> None:
    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            if key == b"stall":
                peer.send(bulk(VALUE)[:sent])
                peer.until_gone()
                return
            peer.send(bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=SHORT)
        begin = time.monotonic()
        assert outcomes(client, ["stall"])[0] == ["DEADLINE"]
        assert 0.25 < time.monotonic() - begin < 1.0
        assert outcomes(client, ["after"]) == (["VALUE"], [VALUE])


def test_a_stall_inside_a_large_value_ends_at_the_deadline(make_client: MakeClient) -> None:
    value = bytes(8_000_000)

    def script(peer: Peer) -> None:
        peer.command()
        peer.send(bulk(value)[:5_000_000])
        peer.until_gone()

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=Deadlines(1.0, 0.6, 5.0))
        begin = time.monotonic()
        assert outcomes(client, ["stall"], len(value))[0] == ["DEADLINE"]
        assert 0.5 < time.monotonic() - begin < 1.5


def test_a_drip_without_end_ends_at_the_deadline_too(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        peer.command()
        peer.send(*[b"x"] * 4000, pause_seconds=0.001)

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=SHORT)
        begin = time.monotonic()
        assert outcomes(client, ["drip"])[0][0] in ("DEADLINE", "PROTOCOL")
        assert time.monotonic() - begin < 1.0


def test_a_deadline_closes_only_its_own_connection(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            if key == b"stall":
                peer.until_gone()
                return
            peer.send(bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(server.url, connections=2, deadlines=SHORT)
        assert outcomes(client, ["a", "b"])[0] == ["VALUE", "VALUE"]
        time.sleep(0.05)
        before = server.connections
        got, buffers = outcomes(client, ["stall", "other"])
        assert (got, buffers[1]) == (["DEADLINE", "VALUE"], VALUE)
        assert outcomes(client, ["a", "b", "c", "d"])[0] == ["VALUE"] * 4
        assert server.connections <= before + 2


def test_once_the_server_answers_every_connection_is_made_before_it_is_needed() -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.command()
            peer.send(b":1\r\n")

    with fake_server(script) as server, RespClient(server.url, connections=6) as client:
        if client.status.name != "compiled":
            pytest.skip("the pure engine's threads connect by themselves")
        assert client.exists(["one key needs one connection"])[0].ok
        deadline = time.monotonic() + 5
        while server.connections < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.connections == 6
        assert client.exists([f"k{i}" for i in range(6)])[5].ok
        assert server.connections == 6


def test_the_total_deadline_bounds_a_batch_of_many_slow_keys(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.command()
            time.sleep(0.1)
            peer.send(bulk(VALUE))

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=Deadlines(1.0, 5.0, 0.55))
        begin = time.monotonic()
        got, buffers = outcomes(client, [f"k{i}" for i in range(20)])
        assert 0.5 < time.monotonic() - begin < 0.9
        served = got.count("VALUE")
        assert 3 <= served <= 6
        assert got[:served] == ["VALUE"] * served
        assert set(got[served:]) == {"DEADLINE"}
        assert buffers[:served] == [VALUE] * served


def test_a_queued_batch_ends_at_its_total_deadline_though_no_thread_is_free(
    make_client: MakeClient,
) -> None:
    def script(peer: Peer) -> None:
        peer.command()
        peer.until_gone()

    with fake_server(script) as server:
        client = make_client(server.url)
        stuck = client.submit(Kind.EXISTS, ["a"], deadlines=Deadlines(1.0, 1.0, None))
        begin = time.monotonic()
        queued = client.submit(Kind.EXISTS, ["b"], deadlines=Deadlines(1.0, 1.0, 0.3))
        assert [r.outcome for r in queued.result(5)] == [Outcome.DEADLINE]
        assert 0.25 < time.monotonic() - begin < 0.8
        assert [r.outcome for r in stuck.result(5)] == [Outcome.DEADLINE]


def test_a_server_that_accepts_and_never_greets_is_bounded_by_the_connect_deadline(
    make_client: MakeClient,
) -> None:
    with fake_server(lambda peer: peer.until_gone()) as server:
        client = make_client(server.url + "?protocol=3", deadlines=Deadlines(0.3, 5.0, 8.0))
        begin = time.monotonic()
        (result,) = client.exists(["a"])
        assert result.outcome is Outcome.UNREACHABLE
        assert "connect deadline" in result.detail
        assert 0.25 < time.monotonic() - begin < 1.0
        begin = time.monotonic()
        assert client.exists(["a"])[0].outcome is Outcome.UNREACHABLE
        assert time.monotonic() - begin < 0.6


def test_a_resolver_that_hangs_is_bounded_by_the_connect_deadline(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def slow(host: str, *rest: Any, **named: Any) -> Any:
        if host == "kv.example" and not rest[3:]:  # a name, not tried as a literal address
            time.sleep(1.5)
        return real(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = make_client("resp://kv.example:1", deadlines=Deadlines(0.3, 5.0, 8.0))
    begin = time.monotonic()
    assert client.exists(["a"])[0].outcome is Outcome.UNREACHABLE
    assert 0.25 < time.monotonic() - begin < 1.0


def test_a_name_is_resolved_and_an_unknown_one_is_said(make_client: MakeClient) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.command()
            peer.send(b":1\r\n")

    with fake_server(script) as server:
        port = server.url.rpartition(":")[2]
        assert make_client(f"resp://localhost:{port}").exists(["a"])[0].ok
    (result,) = make_client("resp://no-such-host.invalid:1").exists(["a"])
    assert result.outcome is Outcome.UNREACHABLE
    assert result.detail.startswith("no-such-host.invalid:1: ")


def test_a_check_of_a_silent_server_ends(make_client: MakeClient) -> None:
    with fake_server(lambda peer: peer.until_gone()) as server:
        client = make_client(server.url, deadlines=Deadlines(0.3, 5.0, 8.0))
        with pytest.raises(ConnectError, match="PING was not answered"):
            client.check()


def test_a_server_that_is_not_there_is_said_at_once_each_time(make_client: MakeClient) -> None:
    with fake_server(lambda peer: None) as gone:
        url = gone.url
    client = make_client(url)
    begin = time.monotonic()
    while time.monotonic() - begin < 0.5:
        (result,) = client.exists(["a"])
        assert result.outcome is Outcome.UNREACHABLE
        assert "refused" in result.detail
