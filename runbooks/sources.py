"""What `--from` names, told by its content, so that one option serves every command."""

from __future__ import annotations

import os
import stat
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from exporters.page_layout import MAGIC

Kind = Literal["pages", "page", "url", "valkey", "bundle", "profile", "unknown"]

_VALKEY_SCHEMES: Final = frozenset({"redis", "rediss", "resp", "valkey", "valkeys", "unix"})
_WEB_SCHEMES: Final = frozenset({"http", "https"})
# First bytes of what the other sources are kept in.
_ARCHIVES: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_PROFILES: Final = (b"SQLite format 3\x00", b"{", b"[")
_HEAD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Source:
    """Where to look. `path` is set for the kind "pages" only."""

    kind: Kind
    text: str
    path: Path | None = None


def recognise(text: str) -> Source:
    """What `text` names. A path that does not exist yet is a page folder that may still come."""
    scheme = urllib.parse.urlsplit(text).scheme.lower() if "://" in text else ""
    if scheme in _WEB_SCHEMES:
        return Source("url", text)
    if scheme in _VALKEY_SCHEMES:
        return Source("valkey", text)
    if scheme:
        return Source("unknown", text)
    path = Path(text)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return Source("pages", text, path)
    if stat.S_ISDIR(mode):
        return Source("pages", text, path)
    # Nothing but a regular file is opened: a FIFO would wait for a writer that never comes.
    return Source(_kind_of_file(path) if stat.S_ISREG(mode) else "unknown", text)


def refusal(source: Source) -> str:
    """Why this source cannot be read, in one line with the mend; "" where it can."""
    folder = os.path.dirname(os.path.abspath(source.text))
    return {
        "pages": "",
        "page": f"{source.text} is one page; give its folder: --from {folder}",
        "url": f"an exporter or Prometheus URL ({source.text}) is not supported in this version; "
        "give the page folder",
        "valkey": f"{source.text} is a Valkey server; give it with --valkey",
        "bundle": f"a bundle ({source.text}) is not supported in this version; "
        "give the page folder",
        "profile": f"a profile ({source.text}) is not supported in this version; "
        "give the page folder",
        "unknown": f"{source.text} is nothing that stallscope reads; give the page folder",
    }[source.kind]


def _kind_of_file(path: Path) -> Kind:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return "unknown"
    if head.startswith(MAGIC):
        return "page"
    if head.startswith(_ARCHIVES):
        return "bundle"
    return "profile" if head.startswith(_PROFILES) else "unknown"


def valkey_url_fault(url: str) -> str:
    """Why a `--valkey` URL cannot be one, in one line with the mend; "" where it can."""
    mend = "write it like redis://HOST:6379"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"{_without_credentials(url)} is not a URL ({error}); {mend}"
    shown = _without_credentials(url)
    if parts.scheme.lower() not in _VALKEY_SCHEMES:
        return f"{shown} is not a Valkey URL; {mend}"
    if parts.scheme.lower() == "unix":
        return "" if parts.path else f"{shown} names no socket; write it like unix:///PATH"
    if not parts.hostname:
        return f"{shown} names no host; {mend}"
    return f"{shown} has port 0; {mend}" if port == 0 else ""


def _without_credentials(url: str) -> str:
    """What may be printed of a URL: a password never is, however the URL is broken."""
    head, separator, rest = url.partition("://")
    if not separator:
        return url.rpartition("@")[2]
    return f"{head}://{rest.rpartition('@')[2]}"
