"""The parser on other readers' cases, whole and split at every byte, and on its own limits."""

from __future__ import annotations

import pytest

from patched_engine.resp.parser import (
    WINDOW_BYTES,
    Parser,
    ProtocolError,
    ReplyError,
    Signal,
    TooLong,
    WrongSize,
)
from tests.patched_engine.resp.reader_cases import BAD, CASES, same

GOOD = b"$5\r\nhello\r\n"


def answers(parser: Parser, pieces: list[bytes]) -> list[object]:
    found: list[object] = []
    for piece in pieces:
        assert parser.feed(piece) == len(piece)
        while (value := parser.next()) is not Signal.NEED_MORE:
            found.append(value)
    return found


@pytest.mark.parametrize(
    ("data", "meaning"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_reply_whole_split_at_every_byte_and_byte_by_byte(data: bytes, meaning: object) -> None:
    splits = [[data[:at], data[at:]] for at in range(1, len(data))]
    for pieces in [[data], *splits, [data[i : i + 1] for i in range(len(data))]]:
        parser = Parser()
        if meaning is BAD:
            with pytest.raises(ProtocolError):
                answers(parser, [*pieces, b"\r\n"])
            with pytest.raises(ProtocolError):
                parser.next()  # what comes next cannot be known any more
        else:
            got, good = answers(parser, [*pieces, GOOD])
            assert same(got, meaning), pieces
            assert good == b"hello"
            assert parser.is_idle


def test_nothing_was_fed() -> None:
    assert Parser().next() is Signal.NEED_MORE


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_can_be_fed(kind: type) -> None:
    assert answers(Parser(), [kind(b"+ok\r\n")]) == [b"ok"]


def test_only_bytes_can_be_fed() -> None:
    with pytest.raises(TypeError):
        Parser().feed(1)  # type: ignore[arg-type]


def test_many_replies_in_one_piece_come_one_by_one() -> None:
    parser = Parser()
    assert answers(parser, [b"+a\r\n:1\r\n" + GOOD]) == [b"a", 1, b"hello"]
    assert parser.unread_bytes == 0


def test_replies_left_untaken_fill_the_window_and_no_more() -> None:
    parser = Parser()
    data = b"+ok\r\n" * (WINDOW_BYTES // 4)
    taken = parser.feed(data)
    assert taken == WINDOW_BYTES
    while parser.next() is not Signal.NEED_MORE:
        pass
    assert parser.feed(data[taken:]) == len(data) - taken


def test_a_line_without_an_end_is_refused() -> None:
    parser = Parser()
    parser.feed(b"+" + b"x" * (WINDOW_BYTES - 1))
    with pytest.raises(ProtocolError, match="a line of more than"):
        parser.next()


def test_a_long_string_does_not_pass_through_one_window() -> None:
    parser = Parser()
    value = bytes(range(256)) * 1024
    reply = b"$%d\r\n%s\r\n" % (len(value), value)
    found: list[object] = []
    for at in range(0, len(reply), 50_000):
        found += answers(parser, [reply[at : at + 50_000]])
    assert found == [value]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 16383, 16384, 16385, 40_000])
@pytest.mark.parametrize("piece", [1, 7, 64, 1000, 100_000])
def test_an_expected_value_goes_into_its_destination(size: int, piece: int) -> None:
    if piece == 1 and size > 1000:
        piece = 13
    value = bytes(i * 7 % 251 for i in range(size))
    reply = b"$%d\r\n%s\r\n" % (size, value) + GOOD
    parser = Parser()
    destination = bytearray(b"\xee" * size)
    parser.expect(memoryview(destination))
    found: list[object] = []
    for at in range(0, len(reply), piece):
        found += answers(parser, [reply[at : at + piece]])
    assert found == [Signal.FILLED, b"hello"]
    assert destination == value


@pytest.mark.parametrize("size", [0, 4, 6, 20_000])
def test_a_value_of_another_size_is_read_past_and_leaves_the_destination(size: int) -> None:
    reply = b"$%d\r\n%s\r\n" % (size, b"x" * size) + GOOD
    for at in (1, 3, len(reply) - 1):
        parser = Parser()
        destination = bytearray(5)
        parser.expect(memoryview(destination))
        found = answers(parser, [reply[:at], reply[at:]])
        assert found == [WrongSize(size), b"hello"]
        assert destination == bytes(5)


def test_a_value_too_long_to_read_past_names_its_size() -> None:
    parser = Parser(drain_bytes=100)
    parser.expect(memoryview(bytearray(5)))
    parser.feed(b"$2147483648\r\n")
    with pytest.raises(TooLong) as caught:
        parser.next()
    assert caught.value.size_bytes == 2**31


@pytest.mark.parametrize("reply", [b"$-1\r\n", b"_\r\n"])
def test_a_miss_uses_up_the_expectation(reply: bytes) -> None:
    parser = Parser()
    destination = bytearray(5)
    parser.expect(memoryview(destination))
    assert answers(parser, [reply, GOOD]) == [None, b"hello"]
    assert destination == bytes(5)


def test_a_push_before_the_value_leaves_the_expectation() -> None:
    parser = Parser()
    destination = bytearray(5)
    parser.expect(memoryview(destination))
    push, filled = answers(parser, [b">1\r\n$5\r\nother\r\n" + GOOD])
    assert (push, filled, destination) == ([b"other"], Signal.FILLED, b"hello")


def test_an_error_uses_up_the_expectation_and_nothing_else() -> None:
    parser = Parser()
    parser.expect(memoryview(bytearray(5)))
    error, good = answers(parser, [b"-OOM command not allowed\r\n" + GOOD])
    assert isinstance(error, ReplyError)
    assert good == b"hello"
