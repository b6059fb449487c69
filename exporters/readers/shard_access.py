"""Who we are to the shards: user, password and CA, from files or the environment, never arguments.

What is on a command line every user of the host can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

USERNAME: Final = "STALLSCOPE_VALKEY_USERNAME"
PASSWORD: Final = "STALLSCOPE_VALKEY_PASSWORD"
PASSWORD_FILE: Final = "STALLSCOPE_VALKEY_PASSWORD_FILE"
CA_FILE: Final = "STALLSCOPE_VALKEY_CA_FILE"
_MOST_BYTES: Final = 4096


class AccessError(ValueError):
    """A variable that names no usable file; the message is one line without its content."""


@dataclass(frozen=True, slots=True)
class Access:
    """For every shard whose URL names nobody; `ca_file` "" is the system's."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str = ""


def access_from(environment: Mapping[str, str]) -> Access:
    """Read the variables above. Raises AccessError."""
    password = environment.get(PASSWORD) or None
    if path := environment.get(PASSWORD_FILE, ""):
        if password is not None:
            raise AccessError(f"{PASSWORD} and {PASSWORD_FILE} are both set: unset one")
        password = _line(path, PASSWORD_FILE)
    ca_file = environment.get(CA_FILE, "")
    if ca_file:
        _line(ca_file, CA_FILE, most_bytes=1 << 20)
    return Access(environment.get(USERNAME) or None, password, ca_file)


def _line(path: str, variable: str, most_bytes: int = _MOST_BYTES) -> str:
    try:
        if not Path(path).is_file():
            raise AccessError(f"{variable}: {path} is no file")
        text = Path(path).read_bytes()[: most_bytes + 1].decode()
    except OSError as error:
        raise AccessError(f"{variable}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AccessError(f"{variable}: {path} is no text") from error
    if not text.strip() or len(text) > most_bytes:
        raise AccessError(f"{variable}: {path} is {'empty' if not text.strip() else 'too long'}")
    return text.rstrip("\r\n")
