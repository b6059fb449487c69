"""Starts and stops the profiler of a running vLLM over its HTTP hooks, around one window."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Final

from exporters.readers.shard_url import without_credentials
from runbooks.cli import exit_codes
from runbooks.cli.parser import UsageError
from runbooks.cli.terminal import emit

START: Final = "start_profile"
STOP: Final = "stop_profile"
_START_SECONDS: Final = 30.0
# Stopping writes the trace of every rank, which takes as long as it takes.
_STOP_SECONDS: Final = 300.0
_TRIES_TO_STOP: Final = 3
_ENABLE: Final = (
    'start the engine with --profiler-config \'{"profiler": "torch", '
    '"torch_profiler_dir": DIR}\' (or "cuda", under nsys profile '
    "--capture-range=cudaProfilerApi)"
)


@dataclass(frozen=True, slots=True)
class HookError(Exception):
    """A hook that did not answer as it should; `text` is the line for a person."""

    text: str

    def __str__(self) -> str:
        return self.text


def capture(url: str, seconds: float, *, as_json: bool) -> int:
    """Profile the engine at `url` for so long. 0 once it has stopped; 3 with one line where a hook
    did not answer. An interrupt stops the profiler before it ends the command. Raises UsageError
    for what is no http URL."""
    base = _base(url)
    try:
        _post(base, START, _START_SECONDS)
    except HookError as error:
        return _told(as_json, base, 0.0, str(error))
    began = time.monotonic()
    try:
        time.sleep(seconds)
    finally:
        took = time.monotonic() - began
        failure = _stop(base)
    return _told(as_json, base, took, failure)


def _base(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    try:
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        bad = True
    if bad:
        raise UsageError(
            f"--capture {without_credentials(url)}: no http URL; give the engine's, such as "
            "http://localhost:8000"
        )
    return url.rstrip("/")


def _stop(base: str) -> str:
    """Stop, and again: a profiler left running slows the engine and fills its disk."""
    failure = ""
    for _ in range(_TRIES_TO_STOP):
        try:
            _post(base, STOP, _STOP_SECONDS)
        except HookError as error:
            failure = str(error)
            time.sleep(0.2)
        else:
            return ""
    shown = without_credentials(base)
    return f"{failure}; the profiler may still run: curl -X POST {shown}/{STOP}"


def _post(base: str, hook: str, timeout_seconds: float) -> None:
    shown = f"{without_credentials(base)}/{hook}"
    parts = urllib.parse.urlsplit(base)
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(
        f"{parts.scheme}://{host}{parts.path}/{hook}", data=b"", method="POST"
    )
    if parts.username:
        pair = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        mend = f"; {_ENABLE}" if error.code in (404, 405) else ""
        raise HookError(f"{shown} answered {error.code}{mend}") from error
    except (urllib.error.URLError, OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, (TimeoutError, socket.timeout)):
            text = f"did not answer within {timeout_seconds:.0f} s"
        else:
            text = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise HookError(f"{shown}: {text}; is the engine's API server there?") from error


def _told(as_json: bool, base: str, seconds: float, failure: str) -> int:
    shown = without_credentials(base)
    if as_json:
        emit(
            json.dumps(
                {"schema": 1, "url": shown, "seconds": round(seconds, 3), "failure": failure}
            )
        )
    elif failure:
        emit(f"unseen  {failure}")
    else:
        emit(
            f"captured {seconds:.1f} s of {shown}; the files are where the engine's profiler "
            f"writes them: stallscope trace DIR"
        )
    return exit_codes.UNSEEN if failure else exit_codes.OK
