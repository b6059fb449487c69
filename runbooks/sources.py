"""What `--from` names, told by its content, so that one option serves every command."""

from __future__ import annotations

import os
import stat
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from exporters.page_layout import MAGIC
from exporters.readers.shard_url import PLAIN_SCHEMES, TLS_SCHEMES, without_credentials
from exporters.recording import HEAD_START

Kind = Literal["pages", "page", "url", "valkey", "bundle", "recording", "profile", "unknown"]

_VALKEY_SCHEMES: Final = PLAIN_SCHEMES | TLS_SCHEMES | {"unix"}
RECORDED: Final = frozenset({"bundle", "recording"})
_WEB_SCHEMES: Final = frozenset({"http", "https"})
# First bytes of what the other sources are kept in.
_ARCHIVES: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_PROFILES: Final = (b"SQLite format 3\x00", b"{", b"[")
_HEAD_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Source:
    """Where to look. `path` is set for pages, bundles and recordings."""

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
    kind = _kind_of_file(path) if stat.S_ISREG(mode) else "unknown"
    return Source(kind, text, path if kind in RECORDED else None)


def refusal(source: Source) -> str:
    """Why this source cannot be read, in one line with the mend; "" where it can."""
    shown = without_credentials(source.text)
    if source.kind == "pages":
        return ""
    if source.kind == "page":
        folder = os.path.dirname(os.path.abspath(source.text))
        return f"{shown} is one page; give its folder: --from {folder}"
    if source.kind == "valkey":
        return f"{shown} is a Valkey server; give it with --valkey"
    if source.kind == "profile":
        return f"{shown} is a profile; read it with stallscope trace {shown}"
    if source.kind == "unknown":
        return f"{shown} is nothing that stallscope reads; give the page folder"
    if source.kind in RECORDED:
        return f"{shown} was recorded; read it with stallscope diagnose --from {shown}"
    return f"{shown} is an exporter or Prometheus; read it with stallscope diagnose --from {shown}"


def _kind_of_file(path: Path) -> Kind:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return "unknown"
    if head.startswith(MAGIC):
        return "page"
    if head.startswith(HEAD_START):
        return "recording"
    if head.startswith(_ARCHIVES):
        return "bundle"
    return "profile" if head.startswith(_PROFILES) else "unknown"
