"""Addresses: every form that is understood, and one clear line for every one that is not."""

from __future__ import annotations

import pytest

from patched_engine.resp import Endpoint, EndpointError, Tls, parse_endpoint


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("resp://kv.example:7000", Endpoint("kv.example", 7000)),
        ("resp://kv.example", Endpoint("kv.example", 6379)),
        ("resp://[::1]:7000/3", Endpoint("::1", 7000, database=3)),
        ("resp://h:1?db=4&protocol=3", Endpoint("h", 1, database=4, protocol=3)),
        ("resp://me:p%40ss@h:1", Endpoint("h", 1, username="me", password="p@ss")),
        ("resp://:word@h:1", Endpoint("h", 1, password="word")),
        ("resps://h:1", Endpoint("h", 1, tls=Tls())),
        (
            "resps://h:1?ca=/c&cert=/d&key=/e&verify=no&check_hostname=no",
            Endpoint("h", 1, tls=Tls("/c", "/d", "/e", False, False)),
        ),
        ("resp+unix:///run/kv.sock?db=2", Endpoint(unix_path="/run/kv.sock", database=2)),
        ("resp+unix://me:pw@/run/kv", Endpoint(unix_path="/run/kv", username="me", password="pw")),
    ],
)
def test_understood(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url, environ={}) == endpoint


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "unknown scheme ''"),
        ("h:1", "unknown scheme"),
        ("redis://h:1", "unknown scheme 'redis'"),
        ("resp://", "no host"),
        ("resp://:7000", "no host"),
        ("resp://h:port", "give resp://HOST:PORT"),
        ("resp://h:70000", "give resp://HOST:PORT"),
        ("resp://h:1/x", "database 'x' is not a whole number"),
        ("resp://h:1?db=-1", "database '-1' is not a whole number"),
        ("resp://h:1?protocol=4", "protocol '4': give 2 or 3"),
        ("resp://h:1?timeout=3", "unknown option 'timeout'"),
        ("resp://h:1?ca=/c", "ca is an option of TLS: give resps://"),
        ("resps://h:1?verify=maybe", "verify='maybe': give yes or no"),
        ("resp+unix://", "no path of a socket"),
        ("resp://kv-{shard}:1", "a placeholder is left unfilled"),
    ],
)
def test_not_understood(url: str, words: str) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(url, environ={})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_credentials_the_nearest_first() -> None:
    environ = {"LMCACHE_RESP_USERNAME": "env", "LMCACHE_RESP_PASSWORD": "env word"}
    assert parse_endpoint("resp://h", environ=environ).password == "env word"
    url = parse_endpoint("resp://url:word@h", environ=environ)
    assert (url.username, url.password) == ("url", "word")
    given = parse_endpoint("resp://url:word@h", username="me", password="mine", environ=environ)
    assert (given.username, given.password) == ("me", "mine")


def test_host_and_port_from_lmcaches_environment() -> None:
    environ = {"LMCACHE_RESP_HOST": "kv", "LMCACHE_RESP_PORT": "7001"}
    assert parse_endpoint("resp://", environ=environ) == Endpoint("kv", 7001)
    with pytest.raises(EndpointError, match="LMCACHE_RESP_PORT 'many'"):
        parse_endpoint("resp://h", environ={"LMCACHE_RESP_PORT": "many"})


@pytest.mark.parametrize("url", ["resp://me:secret@h:1", "resp://me:secret@h:1?db=x"])
def test_a_password_is_never_shown(url: str) -> None:
    try:
        endpoint = parse_endpoint(url, environ={})
        shown = f"{endpoint} {endpoint!r}"
    except EndpointError as error:
        shown = str(error)
    assert "secret" not in shown
