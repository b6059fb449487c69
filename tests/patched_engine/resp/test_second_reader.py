"""hiredis on our table of replies, so that the table itself is not our word alone."""

from __future__ import annotations

import pytest

from patched_engine.resp.parser import ReplyError
from tests.patched_engine.resp.reader_cases import BAD, CASES, same

hiredis = pytest.importorskip("hiredis")

# Where the two differ, and why; ours keeps to the specification or to a bound of its own.
DIFFERENT = {
    "a map as a key": "its maps are dicts, which no dict can be a key of",
    "a reply with an attribute": "it gives the attribute for the reply",
    "an attribute inside an array": "it counts the attribute as an element",
    "a big number": "it leaves the digits as bytes",
    "a blob error": "it knows no such type",
    "a string longer than its length": "it does not look at what ends a string",
    "a CR inside a status": "it takes a CR for the end of the line",
    "depth above the limit": "it nests deeper",
    "an array of too many": "it waits for them",
    "a string of the largest integer": "it waits for it",
    "a string longer than any": "it waits for it",
}
UNFINISHED = object()


def read(data: bytes) -> object:
    reader = hiredis.Reader(
        notEnoughData=UNFINISHED, replyError=ReplyError, protocolError=ValueError
    )
    reader.feed(data)
    try:
        return reader.gets()
    except ValueError:
        return BAD


def plain(value: object) -> object:
    """A value of the table as hiredis has it: pairs for a map, lists for the rest."""
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, set)):
        return [plain(item) for item in value]
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("name", "data", "meaning"), CASES, ids=[case[0] for case in CASES])
def test_it_reads_the_same_but_where_it_is_said_not_to(
    name: str, data: bytes, meaning: object
) -> None:
    try:
        got = read(data)
    except TypeError:
        got = UNFINISHED
    is_same = (got is BAD) == (meaning is BAD) and (got is BAD or same(plain(got), plain(meaning)))
    assert is_same is (name not in DIFFERENT), got


def test_the_differences_are_cases_of_the_table() -> None:
    assert {case[0] for case in CASES} >= set(DIFFERENT)
