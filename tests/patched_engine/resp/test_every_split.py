"""Every reply a key can get, split at every byte on a live socket, and what the next key gets."""

from __future__ import annotations

import pytest

from patched_engine.resp import NO_DEADLINES, Deadlines, KeyResult, Kind, Outcome
from tests.patched_engine.resp.conftest import MakeClient
from tests.patched_engine.resp.fake_server import Peer, bulk, fake_server

VALUE = bytes(i * 11 % 251 for i in range(90))
LARGE = bytes(i * 13 % 251 for i in range(20_000))
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nfoo\r\n"
ATTRIBUTE = b"|1\r\n+ttl\r\n:3600\r\n"
GOOD = b"good value"

# name, reply to a GET of len(VALUE) bytes, its outcome, words of the detail
REPLIES = [
    ("value", bulk(VALUE), Outcome.VALUE, ""),
    ("miss", b"$-1\r\n", Outcome.MISS, ""),
    ("RESP3 miss", b"_\r\n", Outcome.MISS, ""),
    ("shorter", bulk(VALUE[:-1]), Outcome.WRONG_SIZE, "89 bytes, 90 were expected"),
    ("longer", bulk(VALUE + b"!"), Outcome.WRONG_SIZE, "91 bytes, 90 were expected"),
    ("empty", b"$0\r\n\r\n", Outcome.WRONG_SIZE, "0 bytes, 90 were expected"),
    ("OOM", b"-OOM command not allowed when used memory\r\n", Outcome.REFUSED, "OOM command"),
    ("LOADING", b"-LOADING the dataset\r\n", Outcome.REFUSED, "LOADING"),
    ("NOAUTH", b"-NOAUTH Authentication required.\r\n", Outcome.REFUSED, "NOAUTH"),
    ("MOVED", b"-MOVED 3999 127.0.0.1:6381\r\n", Outcome.REFUSED, "MOVED 3999"),
    ("empty error", b"-\r\n", Outcome.REFUSED, ""),
    ("blob error", b"!11\r\nSYNTAX oops\r\n", Outcome.REFUSED, "SYNTAX oops"),
    ("push first", PUSH + bulk(VALUE), Outcome.VALUE, ""),
    ("attribute first", ATTRIBUTE + bulk(VALUE), Outcome.VALUE, ""),
    ("push, then a miss", PUSH + b"$-1\r\n", Outcome.MISS, ""),
]


def get(client: object, key: str, size: int) -> tuple[KeyResult, bytes]:
    buffer = bytearray(b"\xee" * size)
    (result,) = client.get([key], [buffer])  # type: ignore[attr-defined]
    return result, bytes(buffer)


@pytest.mark.parametrize(
    ("reply", "outcome", "words"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES]
)
def test_split_at_every_byte_then_a_good_get_on_the_same_connection(
    make_client: MakeClient, reply: bytes, outcome: Outcome, words: str
) -> None:
    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            if key == b"good":
                peer.send(bulk(GOOD))
            else:
                at = int(key)
                peer.send(*(piece for piece in (reply[:at], reply[at:]) if piece))

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=NO_DEADLINES)
        for at in range(len(reply)):
            result, got = get(client, str(at), len(VALUE))
            assert result.outcome is outcome, (at, result)
            assert words in result.detail
            # What is no value leaves the buffer as it was.
            assert got == (VALUE if outcome is Outcome.VALUE else b"\xee" * len(VALUE)), at
            good, got = get(client, "good", len(GOOD))
            assert (good.outcome, got) == (Outcome.VALUE, GOOD), at
        assert server.connections == 1


def edges(size: int) -> list[int]:
    """Splits of a large reply where the reading changes hands."""
    return [*range(1, 90), *range(16_370, 16_400), *range(size - 70, size)]


def test_a_large_value_split_where_the_reading_changes_hands(make_client: MakeClient) -> None:
    reply = bulk(LARGE)

    def script(peer: Peer) -> None:
        while True:
            _, key = peer.command()
            at = int(key)
            peer.send(reply[:at], reply[at:])

    with fake_server(script) as server:
        client = make_client(server.url)
        for at in edges(len(reply)):
            result, got = get(client, str(at), len(LARGE))
            assert (result.outcome, got == LARGE) == (Outcome.VALUE, True), at
        assert server.connections == 1


def test_pipelined_replies_split_anywhere_stay_with_their_keys(make_client: MakeClient) -> None:
    replies = [bulk(VALUE), b"$-1\r\n", bulk(LARGE), b"-OOM no\r\n", bulk(b"x"), bulk(VALUE)]
    sizes = [len(VALUE), 5, len(LARGE), 5, 7, len(VALUE)]
    wanted = ["VALUE", "MISS", "VALUE", "REFUSED", "WRONG_SIZE", "VALUE"]
    stream = b"".join(replies)

    def script(peer: Peer) -> None:
        while True:
            commands = [peer.command() for _ in replies]
            at = int(commands[0][1])
            peer.send(stream[:at], stream[at:])

    with fake_server(script) as server:
        client = make_client(server.url)
        for at in [*range(1, 200), *range(len(stream) - 170, len(stream))]:
            buffers = [bytearray(size) for size in sizes]
            results = client.get([str(at), *"bcdef"], buffers)
            assert [result.outcome.name for result in results] == wanted, at
            assert [bytes(buffers[i]) for i in (0, 2, 5)] == [VALUE, LARGE, VALUE], at
        assert server.connections == 1


@pytest.mark.parametrize(
    ("kind", "reply", "outcome"),
    [
        (Kind.SET, b"+OK\r\n", Outcome.VALUE),
        (Kind.SET, b"-OOM command not allowed\r\n", Outcome.REFUSED),
        (Kind.EXISTS, b":1\r\n", Outcome.VALUE),
        (Kind.EXISTS, b":0\r\n", Outcome.MISS),
        (Kind.EXISTS, b"-LOADING\r\n", Outcome.REFUSED),
        (Kind.DEL, b":1\r\n", Outcome.VALUE),
        (Kind.DEL, b":0\r\n", Outcome.MISS),
    ],
)
def test_the_other_commands_split_at_every_byte(
    make_client: MakeClient, kind: Kind, reply: bytes, outcome: Outcome
) -> None:
    def script(peer: Peer) -> None:
        while True:
            at = int(peer.command()[1])
            peer.send(*(piece for piece in (reply[:at], reply[at:]) if piece))

    with fake_server(script) as server:
        client = make_client(server.url, deadlines=Deadlines(1, 2, 3))
        for at in range(len(reply)):
            buffers = [b"value"] if kind is Kind.SET else []
            (result,) = client.submit(kind, [str(at)], buffers).result(5)
            assert result.outcome is outcome, (at, result)
        assert server.connections == 1
