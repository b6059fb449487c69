"""What a `--valkey` value names: host, port and credentials, and how it may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

DEFAULT_PORT: Final = 6379
PLAIN_SCHEMES: Final = frozenset({"resp", "valkey", "redis"})
TLS_SCHEMES: Final = frozenset({"resps", "rediss", "valkeys"})
_MEND: Final = "write it like redis://HOST:6379"


class ShardUrlError(ValueError):
    """A value that names no Valkey server; the message is one line without credentials."""


@dataclass(frozen=True, slots=True)
class ShardUrl:
    """One server. `shown` is the URL without credentials, as labels and findings carry it."""

    shown: str
    host: str
    port: int
    tls: bool = False
    unix_path: str = ""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def parse(text: str) -> ShardUrl:
    """Read `scheme://[user:password@]host[:port]`, `host:port` or `unix:///path`.

    Raises ShardUrlError.
    """
    shown = without_credentials(text)
    scheme, separator, _ = text.partition("://")
    scheme = scheme.lower() if separator else ""
    try:
        parts = urlsplit(text if separator else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ShardUrlError(f"{shown} is not a URL ({error}); {_MEND}") from error
    if scheme == "unix":
        if not parts.path:
            raise ShardUrlError(f"{shown} names no socket; write it like unix:///PATH")
        return ShardUrl(shown, "", 0, unix_path=parts.path, password=_unquoted(parts.password))
    if separator and scheme not in PLAIN_SCHEMES | TLS_SCHEMES:
        raise ShardUrlError(f"{shown} is not a Valkey URL; {_MEND}")
    if not host or any(c.isspace() for c in host):
        raise ShardUrlError(f"{shown or 'an empty value'} names no host; {_MEND}")
    if "{" in host:
        raise ShardUrlError(f"{shown} is a template; give one --valkey for each shard")
    if port == 0:
        raise ShardUrlError(f"{shown} has port 0; {_MEND}")
    return ShardUrl(
        shown=shown if port is not None else f"{shown.rstrip('/')}:{DEFAULT_PORT}",
        host=host,
        port=DEFAULT_PORT if port is None else port,
        tls=scheme in TLS_SCHEMES,
        username=_unquoted(parts.username) or None,
        password=_unquoted(parts.password),
    )


def without_credentials(text: str) -> str:
    """What may be shown of a URL, however broken: nothing before the last @, no query."""
    head, separator, rest = text.partition("://")
    if not separator:
        head, rest = "", text
    return f"{head}{separator}{rest.rpartition('@')[2]}".partition("?")[0]


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def is_same_server(template: str, rank: int | None, url: ShardUrl) -> bool:
    """Whether an engine's shard URL names this server. `{rank}` in it stands for the rank.

    A host name matches with and without its domain: an engine says valkey-0 where a person gives
    valkey-0.cache.svc.
    """
    filled = template.replace("{rank}", str(rank)) if rank is not None else template
    try:
        named = parse(filled)
    except ShardUrlError:
        return False
    if named.unix_path or url.unix_path:
        return named.unix_path == url.unix_path
    return named.port == url.port and _is_same_host(named.host.lower(), url.host.lower())


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _is_same_host(one: str, other: str) -> bool:
    if one == other or {one, other} <= _LOOPBACK:
        return True
    short, long = sorted((one, other), key=len)
    is_name = not short.replace(".", "").isdigit() and ":" not in short
    return is_name and long.startswith(f"{short}.")
