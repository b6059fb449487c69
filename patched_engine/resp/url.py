"""Where the server is and how to be let in, from LMCache's remote_url and its environment."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

DEFAULT_PORT: Final = 6379
FORMS: Final = "resp://HOST:PORT[/DB], resps://HOST:PORT[/DB] (TLS) or resp+unix:///PATH"
_YES_NO: Final = {"yes": True, "no": False}
_TLS_OPTIONS: Final = frozenset({"ca", "cert", "key", "verify", "check_hostname"})
_OPTIONS: Final = frozenset({"db", "protocol"}) | _TLS_OPTIONS


class EndpointError(ValueError):
    """An address that cannot be used; the message is one line that says what to write instead."""


class SettingError(EndpointError):
    """A setting that cannot be used with such an address; one line, as above."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS as `resps://` asks for it: the server's certificate is verified unless told otherwise."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises EndpointError where a file cannot be used."""
        context = ssl.create_default_context()
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        # Named one by one: OpenSSL's own message does not say which file it was.
        try:
            if self.ca:
                context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise EndpointError(f"ca={self.ca}: {_reason(error)}: give a PEM file") from None
        try:
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            raise EndpointError(
                f"cert={self.cert} key={self.key}: {_reason(error)}: give PEM files that match"
            ) from None
        return context


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. `protocol` is 2 or 3 (RESP); `unix_path` is "" for TCP."""

    host: str = ""
    port: int = DEFAULT_PORT
    unix_path: str = ""
    database: int = 0
    protocol: int = 2
    username: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None

    def __str__(self) -> str:
        """For people and logs: no credentials."""
        if self.unix_path:
            return self.unix_path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(
    url: str,
    *,
    username: str = "",
    password: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    """The Endpoint of a remote_url. Raises EndpointError.

    Options follow `?`: `db`, `protocol=2|3`, and for TLS `ca`, `cert`, `key` (PEM files),
    `verify=no`, `check_hostname=no`. Credentials are, first found first: `username` and `password`
    here (LMCache's extra_config), those in the URL, LMCACHE_RESP_USERNAME and
    LMCACHE_RESP_PASSWORD. A host or port left out comes from LMCACHE_RESP_HOST, LMCACHE_RESP_PORT,
    as in LMCache.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"{_shown(url)}: {error}: give {FORMS}") from None
    if parts.scheme not in ("resp", "resps", "resp+unix"):
        raise EndpointError(f"{_shown(url)}: unknown scheme {parts.scheme!r}: give {FORMS}")
    options = _options(url, parts)
    unix = parts.scheme == "resp+unix"
    host = "" if unix else parts.hostname or environ.get("LMCACHE_RESP_HOST", "")
    if not unix and not host:
        raise EndpointError(f"{_shown(url)}: no host: give {FORMS}")
    path = unquote(parts.path)
    if unix and not path:
        raise EndpointError(f"{_shown(url)}: no path of a socket: give {FORMS}")
    if "{" in host + path:
        raise EndpointError(
            f"{_shown(url)}: a placeholder is left unfilled: only {{rank}} is known"
        )
    database = options.get("db", "") or ("" if unix else path.strip("/")) or "0"
    user = username or unquote(parts.username or "")
    secret = password or unquote(parts.password or "")
    tls = None
    if parts.scheme == "resps":
        tls = Tls(
            ca=options.get("ca", ""),
            cert=options.get("cert", ""),
            key=options.get("key", ""),
            verify=_flag(url, options, "verify"),
            check_hostname=_flag(url, options, "check_hostname"),
        )
    elif named := sorted(_TLS_OPTIONS & options.keys()):
        raise EndpointError(f"{_shown(url)}: {named[0]} is an option of TLS: give resps://")
    return Endpoint(
        host=host,
        port=port
        or _number(url, "LMCACHE_RESP_PORT", environ.get("LMCACHE_RESP_PORT", ""))
        or DEFAULT_PORT,
        unix_path=path if unix else "",
        database=_number(url, "database", database),
        protocol=_protocol(url, options.get("protocol", "2")),
        username=user or environ.get("LMCACHE_RESP_USERNAME", ""),
        password=secret or environ.get("LMCACHE_RESP_PASSWORD", ""),
        tls=tls,
    )


def endpoint_of(url: str, extra: Mapping[str, object]) -> Endpoint:
    """The same with the credentials that LMCache's extra_config may name. Raises EndpointError."""
    return parse_endpoint(
        url,
        username=str(extra.get("username", "")),
        password=str(extra.get("password", "")),
    )


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - _OPTIONS):
        known = ", ".join(sorted(_OPTIONS))
        raise EndpointError(f"{_shown(url)}: unknown option {unknown[0]!r}: known are {known}")
    return options


def _number(url: str, name: str, text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise EndpointError(f"{_shown(url)}: {name} {text!r} is not a whole number")
    return int(text)


def _protocol(url: str, text: str) -> int:
    if text not in ("2", "3"):
        raise EndpointError(f"{_shown(url)}: protocol {text!r}: give 2 or 3")
    return int(text)


def _flag(url: str, options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "yes")
    if text not in _YES_NO:
        raise EndpointError(f"{_shown(url)}: {name}={text!r}: give yes or no")
    return _YES_NO[text]


def _shown(url: str) -> str:
    """The URL without what stands before its @."""
    scheme, found, rest = url.partition("://")
    return scheme + found + rest.rpartition("@")[2] if found else url


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
