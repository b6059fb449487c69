"""RESP as a Hypothesis grammar: any reply, its bytes and its meaning, and any cut of the bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from patched_engine.resp.parser import Push, ReplyError

Reply = tuple[bytes, Any]  # the bytes, and what a parser makes of them

_LINE = st.binary(max_size=30).filter(lambda line: b"\r\n" not in line and line[-1:] != b"\r")
_STRING = st.one_of(st.binary(max_size=40), st.binary(min_size=60, max_size=70))


def _strings(value: bytes) -> list[Reply]:
    return [
        (b"$%d\r\n%s\r\n" % (len(value), value), value),
        (b"=%d\r\ntxt:%s\r\n" % (len(value) + 4, value), value),
    ]


SCALARS: st.SearchStrategy[Reply] = st.one_of(
    _LINE.map(lambda line: (b"+%s\r\n" % line, line)),
    _LINE.map(lambda line: (b"-%s\r\n" % line, ReplyError(line.decode("utf-8", "replace")))),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: (b":%d\r\n" % n, n)),
    st.integers(-(10**60), 10**60).map(lambda n: (b"(%d\r\n" % n, n)),
    _STRING.flatmap(lambda value: st.sampled_from(_strings(value))),
    _STRING.map(
        lambda text: (
            b"!%d\r\n%s\r\n" % (len(text), text),
            ReplyError(text.decode("utf-8", "replace")),
        )
    ),
    st.sampled_from([(b"$-1\r\n", None), (b"*-1\r\n", None), (b"_\r\n", None)]),
    st.sampled_from([(b"#t\r\n", True), (b"#f\r\n", False)]),
    st.floats(allow_nan=False).map(lambda d: (b",%s\r\n" % repr(d).encode(), d)),
)


def _aggregate(kind: bytes, replies: list[Reply]) -> Reply:
    data = b"".join(data for data, _ in replies)
    values = [value for _, value in replies]
    if kind == b"%":
        pairs = list(zip(values[::2], values[1::2], strict=False))
        even = b"".join(data for data, _ in replies[: 2 * len(pairs)])
        return b"%%%d\r\n%s" % (len(pairs), even), pairs
    return b"%s%d\r\n%s" % (kind, len(values), data), values


def _nested(inner: st.SearchStrategy[Reply]) -> st.SearchStrategy[Reply]:
    lists = st.lists(inner, max_size=5)
    plain = st.builds(_aggregate, st.sampled_from([b"*", b"~", b"%"]), lists)
    attributed = st.builds(
        lambda attribute, reply: (b"|1\r\n+a\r\n" + attribute[0] + reply[0], reply[1]), inner, plain
    )
    return st.one_of(plain, attributed)


def _depth(reply: Reply) -> int:
    """A bound from above on nesting: aggregates' headers."""
    return sum(reply[0].count(kind) for kind in (b"*", b"~", b"%", b"|"))


REPLIES: st.SearchStrategy[Reply] = st.recursive(SCALARS, _nested, max_leaves=12).filter(
    lambda reply: _depth(reply) <= 8
)
PUSHES: st.SearchStrategy[Reply] = st.lists(SCALARS, min_size=1, max_size=3).map(
    lambda replies: (_aggregate(b">", replies)[0], Push(value for _, value in replies))
)


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces, none of them empty."""
    most = max(len(data) - 1, 1)
    ends = sorted(draw(st.sets(st.integers(1, most), max_size=12)) | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]
