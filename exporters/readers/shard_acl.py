"""The least user that shows everything: read-only, and no command that names a value."""

from __future__ import annotations

from typing import Final

USER: Final = "stallscope"
# What each is for: docs/exporter.md.
RULES: Final = (
    "resetkeys",
    "~*",
    "resetchannels",
    "-@all",
    "+ping",
    "+info",
    "+config|get",
    "+client|setname",
    "+client|list",
    "+exists",
    "+scan",
    "+memory|usage",
    "+slowlog|len",
)
# Not known before Redis 7.2 and Valkey 8.1: a server that does not know one refuses the whole line.
LATER_RULES: Final = ("+client|setinfo", "+commandlog|len")


def setuser(password_sha256: str = "SHA256_OF_THE_PASSWORD") -> str:
    """The command that makes the user."""
    rules = (*RULES, *LATER_RULES)
    return f"ACL SETUSER {USER} reset on #{password_sha256} {' '.join(rules)}"
