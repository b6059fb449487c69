"""Any replies in any pieces: the parser's meaning, and each key's own bytes on a live socket."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patched_engine.resp import Outcome, RespClient
from patched_engine.resp.parser import Parser, ProtocolError, Signal
from tests.patched_engine.resp.fake_server import FakeServer, Peer, bulk, fake_server
from tests.patched_engine.resp.grammar import PUSHES, REPLIES, cut
from tests.patched_engine.resp.reader_cases import same
from tests.patched_engine.resp.test_parser import answers

TRIES = settings(max_examples=150, deadline=None, derandomize=True)


@TRIES
@given(st.data())
def test_any_replies_in_any_pieces(data: st.DataObject) -> None:
    replies = data.draw(st.lists(st.one_of(REPLIES, PUSHES), min_size=1, max_size=6))
    pieces = data.draw(cut(b"".join(reply for reply, _ in replies)))
    parser = Parser()
    found = answers(parser, pieces)
    assert len(found) == len(replies)
    assert all(same(got, wanted) for got, (_, wanted) in zip(found, replies, strict=True)), found
    assert parser.is_idle


@TRIES
@given(st.data())
def test_a_damaged_stream_gives_other_values_or_a_protocol_error_and_nothing_else(
    data: st.DataObject,
) -> None:
    reply, _ = data.draw(REPLIES)
    damaged = bytearray(reply)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    parser = Parser()
    try:
        answers(parser, data.draw(cut(bytes(damaged))))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            parser.next()


@TRIES
@given(st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_at_all_with_a_value_expected(data: bytes, size: int) -> None:
    parser = Parser()
    destination = bytearray(size)
    parser.expect(memoryview(destination))
    try:
        while data:
            data = data[parser.feed(data) :]
            while parser.next() is not Signal.NEED_MORE:
                pass
    except ProtocolError:
        pass


# One key's reply: its bytes, the outcome for a buffer of SIZE bytes, and what is then in it.
SIZE = 20
KEY_REPLIES = st.one_of(
    st.binary(min_size=SIZE, max_size=SIZE).map(lambda v: (bulk(v), Outcome.VALUE, v)),
    st.sampled_from([b"$-1\r\n", b"_\r\n"]).map(lambda r: (r, Outcome.MISS, b"")),
    st.binary(max_size=90)
    .filter(lambda v: len(v) != SIZE)
    .map(lambda v: (bulk(v), Outcome.WRONG_SIZE, b"")),
    st.sampled_from([b"-OOM no\r\n", b"!7\r\nMOVED 1\r\n"]).map(
        lambda r: (r, Outcome.REFUSED, b"")
    ),
)
OUT_OF_BAND = st.one_of(st.just(b""), PUSHES.map(lambda push: push[0]))


class Scripted:
    """One server and one client for all examples: the stream must stay in step over all of them."""

    def __init__(self, server: FakeServer, engine: str) -> None:
        self.server = server
        self.client = RespClient(server.url, connections=1, engine=engine)


@pytest.fixture(scope="module", params=["compiled", "pure"])
def scripted(request: pytest.FixtureRequest) -> object:
    plan: list[tuple[int, list[bytes]]] = []

    def script(peer: Peer) -> None:
        while True:
            peer.command()
            count, pieces = plan[-1]
            for _ in range(count - 1):
                peer.command()
            peer.send(*pieces, pause_seconds=0.0002)

    with fake_server(script) as server:
        made = Scripted(server, request.param)
        yield made, plan
        made.client.close()


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_pipeline_of_replies_in_any_pieces_on_a_live_socket(
    scripted: tuple[Scripted, list[tuple[int, list[bytes]]]], data: st.DataObject
) -> None:
    made, plan = scripted
    replies = data.draw(st.lists(st.tuples(OUT_OF_BAND, KEY_REPLIES), min_size=1, max_size=8))
    stream = b"".join(band + reply for band, (reply, _, _) in replies)
    plan.append((len(replies), data.draw(cut(stream))))
    buffers = [bytearray(b"\xee" * SIZE) for _ in replies]
    results = made.client.get([f"k{i}" for i in range(len(replies))], buffers)
    assert [r.outcome for r in results] == [outcome for _, (_, outcome, _) in replies]
    for buffer, (_, (_, _, value)) in zip(buffers, replies, strict=True):
        assert buffer == (value or b"\xee" * SIZE)
    assert made.server.connections == 1
