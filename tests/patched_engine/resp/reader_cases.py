"""What other RESP readers are held to, as a table: the bytes of a reply and what they mean.

The cases are those of hiredis-py's tests/test_reader.py and libvalkey's tests/client_test.c: the
facts in them, for a reader that keeps bytes as bytes and a map as a list of pairs.
"""

from __future__ import annotations

import math
from typing import Any, Final

from patched_engine.resp.parser import Push, ReplyError

NAN: Final = object()
BAD: Final = object()  # a ProtocolError, which stays

_DEEP = 9

CASES: Final[list[tuple[str, bytes, Any]]] = [
    # hiredis-py
    ("an unknown type", b"x", BAD),
    ("an error", b"-error\r\n", ReplyError("error")),
    ("an error that is not UTF-8", b"-error \xd1\r\n", ReplyError("error \ufffd")),
    ("errors in an array", b"*2\r\n-err0\r\n-err1\r\n", [ReplyError("err0"), ReplyError("err1")]),
    ("an error that is not UTF-8 in an array", b"*2\r\n-err\xd1\r\n-err1\r\n",
     [ReplyError("err\ufffd"), ReplyError("err1")]),
    ("the largest integer", b":9223372036854775807\r\n", 2**63 - 1),
    ("a double", b",-99.990000\r\n", -99.99),
    ("true", b"#t\r\n", True),
    ("false", b"#f\r\n", False),
    ("RESP3 null", b"_\r\n", None),
    ("a set", b"~3\r\n+tangerine\r\n_\r\n,10.5\r\n", [b"tangerine", None, 10.5]),
    ("a map in a set", b"~2\r\n+tangerine\r\n%1\r\n+a\r\n:1\r\n", [b"tangerine", [(b"a", 1)]]),
    ("a map", b"%2\r\n+radius\r\n,4.5\r\n+diameter\r\n:9\r\n",
     [(b"radius", 4.5), (b"diameter", 9)]),
    ("a map of maps, arrays and sets",
     b"%3\r\n+m\r\n%2\r\n+key1\r\n+value1\r\n+key2\r\n:42\r\n+a\r\n*2\r\n+item1\r\n+item2\r\n"
     b"+s\r\n~2\r\n+element1\r\n+element2\r\n",
     [(b"m", [(b"key1", b"value1"), (b"key2", 42)]), (b"a", [b"item1", b"item2"]),
      (b"s", [b"element1", b"element2"])]),
    ("a map as a key", b"%1\r\n%1\r\n+key1\r\n+value1\r\n:9\r\n", [([(b"key1", b"value1")], 9)]),
    ("a push", b">4\r\n+pubsub\r\n+message\r\n+channel\r\n+message\r\n",
     Push([b"pubsub", b"message", b"channel", b"message"])),
    ("a verbatim string", b"=8\r\ntxt:text\r\n", b"text"),
    ("a status", b"+ok\r\n", b"ok"),
    ("an empty string", b"$0\r\n\r\n", b""),
    ("a string", b"$5\r\nhello\r\n", b"hello"),
    ("a string of bytes", b"$3\r\n\xe2\x98\x83\r\n", b"\xe2\x98\x83"),
    ("a status that is not UTF-8", b"+\x80value\r\n", b"\x80value"),
    ("a null array", b"*-1\r\n", None),
    ("an empty array", b"*0\r\n", []),
    ("an array", b"*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n", [b"hello", b"world"]),
    ("a nested array", b"*2\r\n*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n$1\r\n!\r\n",
     [[b"hello", b"world"], b"!"]),
    ("depth 4", b"*1\r\n*1\r\n*1\r\n*1\r\n$1\r\n!\r\n", [[[[b"!"]]]]),
    # libvalkey
    ("an unknown type with more behind it", b"@foo\r\n", BAD),
    ("depth at the limit", b"*1\r\n" * _DEEP + b":1\r\n", [[[[[[[[[1]]]]]]]]]),
    ("depth above the limit", b"*1\r\n" * (_DEEP + 1) + b":1\r\n", BAD),
    ("an integer with a letter", b":1x\r\n", BAD),
    ("an integer above the largest", b":9223372036854775808\r\n", BAD),
    ("the smallest integer", b":-9223372036854775808\r\n", -(2**63)),
    ("an integer below the smallest", b":-9223372036854775809\r\n", BAD),
    ("an array of -2", b"*-2\r\n+asdf\r\n", BAD),
    ("a string of -2", b"$-2\r\nasdf\r\n", BAD),
    ("an array of too many", b"*65537\r\n", BAD),
    ("an array that overflows a size", b"*2305843009213693955\r\n+asdf\r\n", BAD),
    ("an array of the largest integer", b"*9223372036854775807\r\n+asdf\r\n", BAD),
    ("a string of the largest integer", b"$9223372036854775807\r\nasdf\r\n", BAD),
    ("a command", b"*3\r\n$3\r\nSET\r\n$5\r\nhello\r\n$3\r\nval\r\n", [b"SET", b"hello", b"val"]),
    ("a verbatim LOLWUT", b"=10\r\ntxt:LOLWUT\r\n", b"LOLWUT"),
    ("a push of two", b">2\r\n$6\r\nLOLWUT\r\n:42\r\n", Push([b"LOLWUT", 42])),
    ("pi", b",3.14159265358979323846\r\n", math.pi),
    ("a double with a NUL", b",3.14159\x00265358979323846\r\n", BAD),
    ("infinity", b",inf\r\n", math.inf),
    ("minus infinity", b",-inf\r\n", -math.inf),
    ("not a number", b",nan\r\n", NAN),
    ("minus not a number", b",-nan\r\n", NAN),
    ("a null with a word", b"_nil\r\n", BAD),
    ("a boolean of another word", b"#foobar\r\n", BAD),
    ("a map of mixed types", b"%2\r\n+first\r\n:123\r\n$6\r\nsecond\r\n#t\r\n",
     [(b"first", 123), (b"second", True)]),
    ("a reply with an attribute", b"|2\r\n+foo\r\n:123\r\n+bar\r\n#t\r\n+reply\r\n", b"reply"),
    ("an attribute inside an array", b"*2\r\n|1\r\n+ttl\r\n:1\r\n:7\r\n:8\r\n", [7, 8]),
    ("a set of mixed types", b"~5\r\n+orange\r\n$5\r\napple\r\n#f\r\n:100\r\n:999\r\n",
     [b"orange", b"apple", False, 100, 999]),
    ("a big number", b"(3492890328409238509324850943850943825024385\r\n",
     3492890328409238509324850943850943825024385),
    ("a double in an array", b"*1\r\n,3.14159265358979323846\r\n", [math.pi]),
    # of our own
    ("a blob error", b"!21\r\nSYNTAX invalid syntax\r\n", ReplyError("SYNTAX invalid syntax")),
    ("a null string", b"$-1\r\n", None),
    ("nulls in an array", b"*2\r\n$-1\r\n_\r\n", [None, None]),
    ("a length with a plus", b"$+5\r\nhello\r\n", BAD),
    ("a length with a leading zero", b"$05\r\nhello\r\n", BAD),
    ("a length of minus zero", b"$-0\r\n\r\n", BAD),
    ("no length", b"$\r\n\r\n", BAD),
    ("a string longer than its length", b"$5\r\nhello!\r\n", BAD),
    ("a string longer than any", b"$2147483648\r\n", BAD),
    ("a CR inside a status", b"+a\rb\r\n", b"a\rb"),
]  # fmt: skip


def same(got: object, wanted: object) -> bool:
    """Equality that also knows errors, pushes and NaN."""
    if wanted is NAN:
        return isinstance(got, float) and math.isnan(got)
    if isinstance(wanted, ReplyError):
        return isinstance(got, ReplyError) and got.args == wanted.args
    if isinstance(wanted, list):
        return (
            type(got) is type(wanted)
            and isinstance(got, list)
            and len(got) == len(wanted)
            and all(same(a, b) for a, b in zip(got, wanted, strict=True))
        )
    if isinstance(wanted, tuple):
        return isinstance(got, tuple) and same(list(got), list(wanted))
    return type(got) is type(wanted) and got == wanted
