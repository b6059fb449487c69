"""Starts the tiny programs that the real py-spy is tried on, and ends them by pid."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

TARGETS = Path(__file__).with_name("targets")


@contextlib.contextmanager
def target(
    name: str, *, argv0: str = sys.executable, arguments: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """One program, up and running; `argv0` is what the process table calls it."""
    process = subprocess.Popen(
        [argv0, str(TARGETS / f"{name}.py"), *arguments],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), line
        process.said = line.split()[1:]  # type: ignore[attr-defined]
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if name == "server":  # ends its own children
            process.wait(10)
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def targets(name: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Several of them."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(target(name)) for _ in range(count)]
