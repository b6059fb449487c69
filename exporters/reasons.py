"""The enumerated reasons why something is unseen: one list for readers, metrics and the CLI."""

from __future__ import annotations

from typing import Final

MISSING_FOLDER: Final = "missing_folder"
EMPTY_FOLDER: Final = "empty_folder"
UNREADABLE: Final = "unreadable"
TRUNCATED: Final = "truncated"
NOT_A_PAGE: Final = "not_a_page"
FUTURE_VERSION: Final = "future_version"
TORN: Final = "torn"
OTHER_BOOT: Final = "other_boot"
NO_WRITER: Final = "no_writer"
DUPLICATE: Final = "duplicate"
MISSING_RANK: Final = "missing_rank"
UNJOINED: Final = "unjoined"
ASYNC_ONLY: Final = "async_only"
TOO_FEW: Final = "too_few"
CONNECTION_REFUSED: Final = "connection_refused"
UNREACHABLE: Final = "unreachable"
TIMEOUT: Final = "timeout"
AUTH: Final = "auth"
NOT_VALKEY: Final = "not_valkey"
SENTINEL: Final = "sentinel"
CLUSTER: Final = "cluster"
NOPERM: Final = "noperm"
BAD_URL: Final = "bad_url"
OTHER_SHARD: Final = "other_shard"
NOT_ASKED: Final = "not_asked"
OUTSTANDING: Final = "outstanding"
NOT_HOOKED: Final = "not_hooked"
RULE_FAILED: Final = "rule_failed"
NOT_A_PROFILE: Final = "not_a_profile"
UNKNOWN_SCHEMA: Final = "unknown_schema"
MISSING_TABLE: Final = "missing_table"
NO_COLLECTIVES: Final = "no_collectives"
NO_CLOCK: Final = "no_clock"
DAMAGED: Final = "damaged"
NO_TOOL: Final = "no_tool"
NO_PTRACE: Final = "no_ptrace"
NO_PROCESS: Final = "no_process"
NOT_PYTHON: Final = "not_python"
ENDED: Final = "ended"

ALL: Final = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
)
