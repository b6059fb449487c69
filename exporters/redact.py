"""Takes secrets out of what a bundle says of an engine: environment, command lines, configuration.

Only variables known to matter are taken at all; what is left is searched for names that say
password, token or key, and for credentials in URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

REMOVED: Final = "(removed)"
_WANTED: Final = re.compile(
    r"^(?:LMCACHE_|VLLM_|STALLSCOPE_|NCCL_|CUDA_|UCX_|TORCH_NCCL_|OTEL_EXPORTER_OTLP_ENDPOINT$"
    r"|PYTHONHASHSEED$|OMP_NUM_THREADS$)"
)
_SECRET_NAME: Final = (
    r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token(?!s|_database|izer)|credential|authorization"
    r"|(?:api|access|private|auth|encryption|signing)[_-]?key|bearer)[\w.-]*"
)
_SECRET: Final = re.compile(_SECRET_NAME, re.IGNORECASE)
_OWN_PASSWORD: Final = re.compile(r"PASSWORD|USERNAME|HEADERS|_KEY$|TOKEN", re.IGNORECASE)
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s\"'@]*@", re.IGNORECASE)
# "name": value of JSON, YAML and Python; name=value; --name value. The value to its end.
_ASSIGNED: Final = re.compile(
    rf"(?P<head>[\"']?{_SECRET_NAME}[\"']?\s*[:=]\s*)"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;}\]]+)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE)


def text(value: str) -> str:
    """Free text (a configuration file, a value) without credentials."""
    value = _URL.sub(lambda m: f"{m[1]}{REMOVED}@", value)
    value = _BEARER.sub(lambda m: f"{m[1]} {REMOVED}", value)
    return _ASSIGNED.sub(lambda m: f"{m['head']}{REMOVED}", value)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, sorted, without secrets."""
    found = {}
    for name in sorted(variables):
        if _WANTED.search(name):
            is_secret = bool(_SECRET.fullmatch(name) or _OWN_PASSWORD.search(name))
            found[name] = REMOVED if is_secret else text(variables[name])
    return found


def command_line(words: Iterable[str]) -> list[str]:
    """A command line; what follows an option with a secret name is removed."""
    shown = []
    is_secret = False
    for word in words:
        name, separator, _ = word.partition("=")
        if is_secret and not word.startswith("-"):
            shown.append(REMOVED)
            is_secret = False
            continue
        is_option = name.startswith("-") and bool(_SECRET.fullmatch(name.lstrip("-")))
        if is_option and separator:
            shown.append(f"{name}={REMOVED}")
        else:
            shown.append(text(word))
        is_secret = is_option and not separator
    return shown
