"""Counts the log lines of LMCache and vLLM that say what none of their metrics says.

A record is noted as it is made, whatever its logger's handlers and propagation are; it is looked up
in the table once a second, on the heartbeat's thread. The text is not kept.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

from exporters import page_layout as layout
from exporters.log_lines import find
from patched_engine import recorder
from patched_engine.page import Page

PACKAGES: Final = ("lmcache", "vllm")
_PREFIXES: Final = tuple(f"{package}." for package in PACKAGES)
# Lines of one second, and how much of each is looked at: an engine writes a few dozen.
MOST_LINES: Final = 4000
MOST_CHARACTERS: Final = 500

Factory = Callable[..., logging.LogRecord]


class LogCounter:
    """A factory of log records that notes those of the two libraries."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._noted: deque[tuple[str, str]] = deque(maxlen=MOST_LINES)
        self._versions: dict[str, str] = {}

    def __call__(self, name: str, level: int, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._factory(name, level, *args, **kwargs)
        if level >= logging.INFO and name.startswith(_PREFIXES):
            with contextlib.suppress(Exception):  # what its handlers cannot write is of no kind
                self._noted.append((name, record.getMessage()[:MOST_CHARACTERS]))
        return record

    def poll(self, page: Page) -> None:
        """Count what was noted since the last time."""
        versions = self._versions or self._read_versions()
        for _ in range(len(self._noted)):
            name, message = self._noted.popleft()
            line = find(message, name, versions)
            if line is not None:
                page.add(layout.COUNTER_INDEX[f"log_{line.kind}"])

    def _read_versions(self) -> dict[str, str]:
        for package in PACKAGES:
            try:
                self._versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                self._versions[package] = ""
        return self._versions


def install() -> None:
    """Note lines from now on; they are counted once there is a page."""
    counter = LogCounter(logging.getLogRecordFactory())
    logging.setLogRecordFactory(counter)
    recorder.when_paged(lambda page: page.add_poller(lambda: counter.poll(page)))
