"""One GET of JSON from an exporter or a Prometheus: credentials, TLS, each refusal in a line."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

from exporters.readers.shard_url import without_credentials

TIMEOUT_SECONDS: Final = 10.0
TOKEN_VARIABLE: Final = "STALLSCOPE_WEB_TOKEN"
CA_VARIABLE: Final = "STALLSCOPE_WEB_CA_FILE"
_MOST_BYTES: Final = 64_000_000
_KNOWN_PATHS: Final = ("/metrics", "/snapshot", "/graph", "/query")
_REFUSALS: Final = {
    401: f"give a user in the URL, or a token in {TOKEN_VARIABLE}",
    403: f"this user may not read it; give another, or a token in {TOKEN_VARIABLE}",
    404: "it has no such page",
    503: "it is not ready, or too many ask at once; ask again",
}


class WebError(Exception):
    """No answer to read: one line without credentials. `code` is the HTTP status, 0 for none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def get_json(url: str, path: str, parameters: Mapping[str, str] | None = None) -> Any:
    """The JSON at `path` of the server of `url`. Credentials come with the URL, or a token from
    STALLSCOPE_WEB_TOKEN; an authority of one's own from STALLSCOPE_WEB_CA_FILE. Raises WebError."""
    shown = without_credentials(url)
    try:
        parts = urlsplit(url)
        base = parts.path.rstrip("/")
        for known in _KNOWN_PATHS:
            base = base.removesuffix(known)
        host = parts.netloc.rpartition("@")[2]
        query = urlencode(parameters or {})
        request = urllib.request.Request(
            urlunsplit((parts.scheme, host, f"{base}{path}", query, ""))
        )
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            request.add_header("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
        elif token := os.environ.get(TOKEN_VARIABLE):
            request.add_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=os.environ.get(CA_VARIABLE) or None)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            data = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        why = _REFUSALS.get(error.code) or _told(error)
        raise WebError(f"{shown}: HTTP {error.code}: {why}", error.code) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise WebError(f"{shown} cannot be reached: {reason}") from error
    if len(data) > _MOST_BYTES:
        raise WebError(f"{shown}: its answer is larger than any that is read")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        what = "it is neither an exporter of ours nor a Prometheus"
        raise WebError(f"{shown}: {path} is not JSON: {what}") from error


def _told(error: urllib.error.HTTPError) -> str:
    """What a Prometheus says of a query that it refuses."""
    try:
        found = json.loads(error.read(100_000))
        return " ".join(str(found["error"]).split())[:200]
    except (ValueError, KeyError, TypeError, OSError):
        return "no reason given"
