"""Run py-spy on many processes side by side, and read what it prints into typed stacks.

py-spy follows no children in its JSON mode, hence one run a process. Without pausing: its default
mode stops every thread of the process meanwhile, and fails on one that is stopped already.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from exporters.readers.page import plain
from exporters.readers.proc_table import read_entry
from exporters.snapshot import Frame, ThreadStack

TRIES: Final = 1 + 3  # a picture taken on the run may be torn: three more
MOST_FRAMES: Final = 200  # of one thread: a runaway recursion has its ends kept
MOST_THREADS: Final = 2000
_STOPPED: Final = ("T", "t")
_ENDED: Final = ("Z", "X")
_DENIED: Final = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)
_NOT_PYTHON: Final = re.compile(r"find python version|find a python|libpython|not a python", re.I)
_PACKAGE: Final = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3\.\d+/")

Failure = Literal["ended", "denied", "not_python", "timeout", "failed"]


@dataclass(frozen=True, slots=True)
class Dump:
    """One process's stacks, or why there are none: `failure` and its one line.

    `torn`: no try gave a picture that holds together; `threads` are then the last try's.
    """

    pid: int
    state: str
    threads: tuple[ThreadStack, ...] = ()
    torn: bool = False
    failure: Failure | None = None
    detail: str = ""
    read_seconds: float = 0.0
    took_seconds: float = 0.0


def find_py_spy() -> str | None:
    """The py-spy beside this Python (an environment need not be on the PATH), else the PATH's."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump_all(
    py_spy: str, pids: Sequence[int], deadline_seconds: float, native: bool = False
) -> tuple[Dump, ...]:
    """The stacks of all of them, in the order given, in at most `deadline_seconds`.

    `native`: frames of C and C++ too, for which py-spy pauses the process (30 to 80 ms).
    """
    if not pids:
        return ()
    until = time.monotonic() + deadline_seconds
    with ThreadPoolExecutor(len(pids), "py-spy") as pool:
        return tuple(pool.map(lambda pid: _dump(py_spy, pid, until, native), pids))


def _dump(py_spy: str, pid: int, until: float, native: bool) -> Dump:
    began = time.monotonic()
    entry = read_entry(pid)
    if entry is None or entry.state in _ENDED:
        return _failed(pid, "ended", f"process {pid} has ended", entry.state if entry else "")
    state = entry.state
    native = native and state not in _STOPPED
    torn: tuple[ThreadStack, ...] = ()
    last = ""
    for _ in range(TRIES):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            code, out, error = _run(py_spy, pid, left, native, was_stopped=state in _STOPPED)
        except subprocess.TimeoutExpired:
            break
        except OSError as failure:
            return _failed(pid, "failed", f"cannot run {py_spy}: {failure.strerror}", state)
        if code == 0:
            picture = parse(out)
            took = time.monotonic() - began
            if picture.is_whole:
                return Dump(
                    pid, state, picture.threads, read_seconds=time.monotonic(), took_seconds=took
                )
            torn = picture.threads or torn
            last = "its frames do not hold together"
            continue
        last = _first_lines(error)
        now = read_entry(pid)
        if now is None or now.state in _ENDED:
            return _failed(pid, "ended", f"process {pid} ended while it was read", state)
        if _DENIED.search(error):
            return _failed(pid, "denied", f"py-spy may not look into process {pid}", state)
        if _NOT_PYTHON.search(error) and not torn:
            return _failed(pid, "not_python", f"process {pid} runs no Python that py-spy knows")
    took = time.monotonic() - began
    if torn:
        return Dump(
            pid, state, torn, True, detail=last, read_seconds=time.monotonic(), took_seconds=took
        )
    if last:
        return _failed(pid, "failed", f"py-spy failed on process {pid}: {last}", state)
    return _failed(pid, "timeout", f"py-spy gave no answer on process {pid} in {took:.1f} s", state)


def _failed(pid: int, failure: Failure, detail: str, state: str = "") -> Dump:
    return Dump(pid, state, failure=failure, detail=detail, read_seconds=time.monotonic())


def _run(
    py_spy: str, pid: int, seconds: float, native: bool, was_stopped: bool
) -> tuple[int, str, str]:
    """One py-spy. Raises TimeoutExpired and OSError; never leaves the process stopped."""
    command = [py_spy, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    command.append("--native" if native else "--nonblocking")
    # Only the tool's own: no proxy, no key of ours in another process's environment.
    environment = {"PATH": os.defpath, "LC_ALL": "C", "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
            start_new_session=native,  # Ctrl-C in a terminal must not end it half way
        )
    except subprocess.TimeoutExpired:
        if native and not was_stopped:
            _let_go_on(pid)
        raise
    if native and not was_stopped and done.returncode < 0:  # ended by a signal
        _let_go_on(pid)
    decode = [text.decode("utf-8", "replace") for text in (done.stdout, done.stderr)]
    return done.returncode, *decode  # type: ignore[return-value]


def _let_go_on(pid: int) -> None:
    """A tracer that is killed between stopping a process and waiting for it leaves it stopped."""
    for _ in range(20):
        entry = read_entry(pid)
        if entry is None:
            return
        if entry.state in _STOPPED:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
            return
        time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Picture:
    """What one py-spy printed. `is_whole`: it can be of one moment."""

    threads: tuple[ThreadStack, ...]
    is_whole: bool


def parse(text: str) -> Picture:
    """py-spy's JSON as typed threads, the main thread first; not whole where it is none of it.

    A picture taken on the run is torn where a name or a line is none that code has, or a thread's
    outermost call is not one that C code made (a thread's first, or a module's).
    """
    try:
        listed = json.loads(text)[:MOST_THREADS]
        threads = sorted(map(_thread, listed), key=_main_first)
        calls = [frame for item in listed for frame in item["frames"]]
        outermost = [item["frames"][-1] for item in listed if item["frames"]]
        names = [str(frame["name"]) for frame in calls]
        entries = list(map(_is_entry, calls))
        # Of a Python before 3.11 py-spy does not learn the kernel's number without pausing it.
        ids = {(item["os_thread_id"], item.get("thread_id")) for item in listed}
    except (ValueError, TypeError, KeyError, RecursionError):
        return Picture((), False)
    is_whole = (
        bool(calls)
        and len(ids) == len(threads)
        and all(name.strip() and name.isprintable() and "\ufffd" not in name for name in names)
        and all(thread_frame.line >= 0 for t in threads for thread_frame in t.frames)
        and (not any(entries) or all(map(_is_entry, outermost)))
        and (not all(entries) or all(map(_is_begun_by_threading, listed)))
    )
    return Picture(tuple(threads), is_whole)


def _is_entry(frame: dict[str, Any]) -> bool:
    """Called from C. A py-spy or a Python that does not tell says so of no frame."""
    return bool(frame.get("is_entry") or frame.get("is_shim_entry"))


def _is_begun_by_threading(item: dict[str, Any]) -> bool:
    """What is left to tell a torn stack by where every call is an entry (Python before 3.11): a
    named thread begins in `_bootstrap`. The main thread, and those of C++, may begin anywhere."""
    name = str(item["thread_name"] or "Dummy")
    if name == "MainThread" or name.startswith("Dummy") or not item["frames"]:
        return True
    return str(item["frames"][-1]["name"]).rpartition(".")[2] == "_bootstrap"


def _main_first(thread: ThreadStack) -> tuple[bool, str, int]:
    return thread.name != "MainThread", thread.name, thread.os_thread_id


def _thread(item: dict[str, Any]) -> ThreadStack:
    frames = tuple(
        Frame(
            plain(str(f["name"]))[:200],
            plain(short_file(str(f["filename"] or f["short_filename"] or "?"))),
            int(f["line"]),
        )
        for f in item["frames"]
    )
    cut = max(0, len(frames) - MOST_FRAMES)
    if cut:
        half = MOST_FRAMES // 2
        frames = (*frames[:half], *frames[-half:])
    return ThreadStack(
        name=plain(str(item["thread_name"] or "")),
        os_thread_id=int(item["os_thread_id"] or 0),
        frames=frames,
        active=bool(item["active"]),
        holds_gil=bool(item["owns_gil"]),
        cut_frames=cut,
    )


def short_file(path: str) -> str:
    """A file as far as its package or the standard library: lmcache/v1/cache_engine.py."""
    return _PACKAGE.sub("", path)


def _first_lines(text: str) -> str:
    """py-spy's error and its causes in one line."""
    head = text.split("Stack backtrace", 1)[0]
    lines = [plain(line.strip()) for line in head.splitlines() if line.strip()]
    return " ".join(lines)[:300] or "py-spy failed without a word"
