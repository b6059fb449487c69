"""Asks an exporter for its newest evaluation (/snapshot), the one its findings series show."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from exporters.readers.bundle import BundleError
from exporters.readers.shard_url import without_credentials
from exporters.snapshot import Evaluation
from exporters.snapshot_json import SnapshotError, from_json

TIMEOUT_SECONDS: Final = 10.0
TOKEN_VARIABLE: Final = "STALLSCOPE_WEB_TOKEN"
CA_VARIABLE: Final = "STALLSCOPE_WEB_CA_FILE"
_MOST_BYTES: Final = 64_000_000
_SCRAPE_PATHS: Final = ("/metrics", "/snapshot", "/")


def fetch(url: str) -> Evaluation:
    """The newest evaluation. Credentials come with the URL, or a token from STALLSCOPE_WEB_TOKEN.

    Raises BundleError: unreachable, refused, not an exporter of ours.
    """
    shown = without_credentials(url)
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    for known in _SCRAPE_PATHS:
        path = path.removesuffix(known.rstrip("/")) if known != "/" else path
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(urlunsplit((parts.scheme, host, f"{path}/snapshot", "", "")))
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
    elif token := os.environ.get(TOKEN_VARIABLE):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        context = ssl.create_default_context(cafile=os.environ.get(CA_VARIABLE) or None)
        handlers = [urllib.request.HTTPSHandler(context=context)]
        opener = urllib.request.build_opener(*handlers)
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            data = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise BundleError(f"{shown}: {_refusal(error.code)}") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise BundleError(f"{shown} cannot be reached: {why}") from error
    if len(data) > _MOST_BYTES:
        raise BundleError(f"{shown}: its answer is larger than any snapshot")
    try:
        return from_json(json.loads(data))
    except SnapshotError as error:
        raise BundleError(f"{shown}: its snapshot {error}") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{shown} is no stallscope exporter: /snapshot is not JSON") from error


def _refusal(code: int) -> str:
    if code in (401, 403):
        return f"HTTP {code}: give a user in the URL, or a token in {TOKEN_VARIABLE}"
    if code == 404:
        return "HTTP 404: it is no stallscope exporter, which has /snapshot"
    if code == 503:
        return "HTTP 503: its last tick is too old, or too many ask at once; ask again"
    return f"HTTP {code}"
