"""Who may read the exporter over the network: Prometheus' web configuration file, TLS and users.

The file's form is that of Prometheus and its exporters (`--web.config.file`): what is written for
those works here, and a key that is not supported is refused by name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import ssl
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# A verdict is kept by a salted digest of what was sent: bcrypt takes tens of milliseconds, each
# scrape asks, and a guess must not be cheaper than that for who has not been let in.
KEPT_VERDICTS: Final = 128
_CHECK_WAIT_SECONDS: Final = 1.0
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TLS_KEYS: Final = frozenset(
    ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
)


class WebConfigError(ValueError):
    """A file that cannot be used; the message is one line that says where and the mend."""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """`tls` None: plain HTTP. `users` None: everybody may read."""

    tls: ssl.SSLContext | None = None
    users: Users | None = None


class Users:
    """Names and bcrypt hashes. `allows` may be called by any thread."""

    def __init__(self, hashes: Mapping[str, bytes]) -> None:
        import bcrypt

        self._hashes = dict(hashes)
        self._of_nobody = bcrypt.hashpw(os.urandom(16), bcrypt.gensalt(10))
        self._salt = os.urandom(16)
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._lock = threading.Lock()
        self._one_check = threading.Lock()

    def allows(self, authorization: str) -> bool | None:
        """Whether an Authorization header names a user and the password; None: too busy to tell."""
        digest = hashlib.sha256(self._salt + authorization.encode("utf-8", "replace")).digest()
        with self._lock:
            if digest in self._verdicts:
                self._verdicts.move_to_end(digest)
                return self._verdicts[digest]
        given = _credentials(authorization)
        if given is None:
            return False
        if not self._one_check.acquire(timeout=_CHECK_WAIT_SECONDS):
            return None  # somebody guesses, many at a time
        try:
            verdict = self._matches(*given)
        finally:
            self._one_check.release()
        with self._lock:
            self._verdicts[digest] = verdict
            while len(self._verdicts) > KEPT_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict

    def _matches(self, name: str, password: bytes) -> bool:
        import bcrypt

        # For a name that is not there the same work, so that its time tells nothing.
        known = self._hashes.get(name, self._of_nobody)
        try:
            return bcrypt.checkpw(password[:72], known)
        except ValueError:
            return False


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, coded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, separator, password = base64.b64decode(coded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name.decode("utf-8", "replace"), password) if separator else None


def read(path: Path) -> WebConfig:
    """Read the file. Raises WebConfigError."""
    try:
        import bcrypt  # noqa: F401
        import yaml
    except ImportError as error:
        raise WebConfigError(f"{path} needs {error.name}: pip install 'stallscope[web]'") from error
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WebConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WebConfigError(f"{path} is no YAML: {_one_line(error)}") from error
    found = _mapping({} if data is None else data, f"{path}")
    _refuse_unknown(found, {"tls_server_config", "basic_auth_users"}, f"{path}")
    tls = found.get("tls_server_config")
    users = found.get("basic_auth_users")
    return WebConfig(
        _tls(_mapping(tls, f"{path}: tls_server_config"), path) if tls is not None else None,
        _users(_mapping(users, f"{path}: basic_auth_users"), path) if users else None,
    )


def _tls(given: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    where = f"{path}: tls_server_config"
    _refuse_unknown(given, _TLS_KEYS, where)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _chosen(given, "min_version", _VERSIONS, "TLS12", where)
    context.maximum_version = _chosen(given, "max_version", _VERSIONS, "TLS13", where)
    files = {name: given.get(name) for name in ("cert_file", "key_file", "client_ca_file")}
    for name in ("cert_file", "key_file"):
        if not files[name]:
            raise WebConfigError(f"{where} has no {name}")
    beside = {name: path.parent / str(file) for name, file in files.items() if file}
    try:
        context.load_cert_chain(beside["cert_file"], beside["key_file"])
        context.verify_mode = _chosen(
            given, "client_auth_type", _CLIENT_AUTH, "NoClientCert", where
        )
        if "client_ca_file" in beside:
            context.load_verify_locations(beside["client_ca_file"])
    except (OSError, ValueError) as error:
        shown = ", ".join(str(file) for file in beside.values())
        raise WebConfigError(f"{where}: cannot use {shown}: {_one_line(error)}") from error
    if context.verify_mode != ssl.CERT_NONE and "client_ca_file" not in beside:
        raise WebConfigError(f"{where}: client_auth_type needs client_ca_file")
    return context


def _users(given: Mapping[str, Any], path: Path) -> Users:
    hashes = {}
    for name, coded in given.items():
        text = str(coded)
        if not text.startswith(("$2a$", "$2b$", "$2y$")) or len(text) != 60:
            raise WebConfigError(
                f"{path}: basic_auth_users: {name} has no bcrypt hash; make one with htpasswd -nBC "
                "10 NAME"
            )
        hashes[str(name)] = text.encode()
    return Users(hashes)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WebConfigError(f"{where} is no mapping of names to values")
    return value


def _refuse_unknown(given: Mapping[str, Any], known: Any, where: str) -> None:
    if unknown := sorted(str(name) for name in given if name not in known):
        raise WebConfigError(f"{where}: {unknown[0]} is not supported here; leave it out")


def _chosen(
    given: Mapping[str, Any], name: str, allowed: Mapping[str, Any], default: str, where: str
) -> Any:
    text = str(given.get(name) or default)
    if text not in allowed:
        raise WebConfigError(f"{where}: {name} is {text:.40}, none of {', '.join(allowed)}")
    return allowed[text]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
