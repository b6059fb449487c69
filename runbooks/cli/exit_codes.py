"""The exit codes of every stallscope command: one list for the code, the help and the tests."""

from __future__ import annotations

from typing import Final

OK: Final = 0
WARNING: Final = 1
CRITICAL: Final = 2
UNSEEN: Final = 3
USAGE: Final = 64  # sysexits.h EX_USAGE; argparse's own 2 would read as "critical"
INTERNAL: Final = 70  # sysexits.h EX_SOFTWARE
INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it

MEANINGS: Final = {
    OK: "nothing found, and all that was asked for was seen",
    WARNING: "a warning was found",
    CRITICAL: "something critical was found",
    UNSEEN: "nothing found, but something was unseen",
    USAGE: "the command line cannot be used as written",
    INTERNAL: "a fault in stallscope itself",
    INTERRUPTED: "interrupted",
}
