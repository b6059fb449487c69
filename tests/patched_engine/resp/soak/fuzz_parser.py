"""The atheris target: any bytes, in any pieces, with or without a value expected.

`python -m tests.patched_engine.resp.soak.fuzz_parser CORPUS -max_total_time=600`. The first byte
chooses the pieces' size, the second the expected value's; the rest is what the server sends. The
same bytes in one piece must mean the same.
"""

from __future__ import annotations

import sys
from typing import Any

from patched_engine.resp.parser import Parser, ProtocolError, ReplyError, Signal


def meaning(data: bytes, piece: int, expected: int) -> tuple[list[Any], bytes]:
    """Everything the parser made of the bytes, comparable, and the value's place afterwards."""
    parser = Parser(max_string_bytes=1 << 16, drain_bytes=1 << 12)
    destination = bytearray(expected)
    parser.expect(memoryview(destination) if expected else None)
    found: list[Any] = []
    at = 0
    try:
        while at < len(data):
            taken = parser.feed(data[at : at + piece])
            assert taken, "nothing fits and nothing waits"
            at += taken
            while (value := parser.next()) is not Signal.NEED_MORE:
                found.append(repr(value.args if isinstance(value, ReplyError) else value))
    except ProtocolError:
        found.append("ProtocolError")
        try:
            parser.next()
        except ProtocolError:
            pass
        else:
            raise AssertionError("the parser goes on after a ProtocolError")
    return found, bytes(destination)


def one_input(data: bytes) -> None:
    """Raises AssertionError, or whatever the parser must not raise."""
    if len(data) < 3:
        return
    piece, expected, rest = 1 + data[0] % 70, data[1] % 40, data[2:]
    in_pieces, place = meaning(rest, piece, expected)
    whole, same_place = meaning(rest, 1 << 16, expected)
    assert in_pieces == whole
    if "Signal.FILLED" in str(in_pieces):
        assert place == same_place


if __name__ == "__main__":
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
