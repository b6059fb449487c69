"""What `--valkey` may be, and that no credential is ever shown."""

from __future__ import annotations

import pytest

from exporters.readers.shard_url import (
    ShardUrlError,
    is_same_server,
    parse,
    without_credentials,
)


@pytest.mark.parametrize(
    ("text", "shown", "host", "port", "tls"),
    [
        ("resp://v-0:7000", "resp://v-0:7000", "v-0", 7000, False),
        ("valkey://v-0:7000", "valkey://v-0:7000", "v-0", 7000, False),
        ("redis://v-0", "redis://v-0:6379", "v-0", 6379, False),
        ("redis://v-0/", "redis://v-0:6379", "v-0", 6379, False),
        ("rediss://v-0:7000", "rediss://v-0:7000", "v-0", 7000, True),
        ("resps://v-0:7000", "resps://v-0:7000", "v-0", 7000, True),
        ("REDIS://v-0:7000", "REDIS://v-0:7000", "v-0", 7000, False),
        ("v-0:7000", "v-0:7000", "v-0", 7000, False),
        ("v-0", "v-0:6379", "v-0", 6379, False),
        ("[::1]:7000", "[::1]:7000", "::1", 7000, False),
        ("redis://u:s3cret@v-0:7000", "redis://v-0:7000", "v-0", 7000, False),
        ("u:s3cret@v-0:7000", "v-0:7000", "v-0", 7000, False),
    ],
)
def test_what_names_a_shard(text, shown, host, port, tls):
    url = parse(text)
    assert (url.shown, url.host, url.port, url.tls) == (shown, host, port, tls)


def test_credentials_are_taken_and_not_shown():
    url = parse("redis://us%40er:p%2Fw@v-0:7000")
    assert (url.username, url.password) == ("us@er", "p/w")
    assert "p/w" not in repr(url) and "us@er" not in repr(url)
    assert parse("redis://:pw@v-0").username is None


def test_a_socket():
    url = parse("unix:///run/valkey.sock")
    assert (url.unix_path, url.shown) == ("/run/valkey.sock", "unix:///run/valkey.sock")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "://",
        "http://v-0:7000",
        "redis://",
        "redis://v-0:port",
        "redis://v-0:99999",
        "redis://v-0:0",
        "redis://[::1:7000",
        "two words:7000",
        "unix://",
        "resp://valkey-{rank}:6379",
        "http://u:s3cret@v-0:7000",
        "redis://u:s3cret@v-0:port",
    ],
)
def test_what_names_none_is_one_line_without_credentials(text):
    with pytest.raises(ShardUrlError) as caught:
        parse(text)
    message = str(caught.value)
    assert message and "\n" not in message and "s3cret" not in message


@pytest.mark.parametrize("text", ["redis://a:b@c@d:1?password=x", "a:b@c", "@", "x://@"])
def test_nothing_before_the_last_at_sign_is_shown(text):
    assert "b@" not in without_credentials(text)
    assert without_credentials(text).rpartition("=")[2] != "x"


def test_an_engines_tls_address_is_the_one_that_is_asked():
    template = "resps://valkey-{rank}.vllm.svc.cluster.local:6379?ca=/tls/ca.crt"
    assert is_same_server(template, 1, parse("rediss://valkey-1.vllm.svc.cluster.local:6379"))
    assert is_same_server(template, 1, parse("resps://valkey-1:6379"))
    assert not is_same_server(template, 2, parse("rediss://valkey-1:6379"))
