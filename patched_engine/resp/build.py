"""Builds the compiled core once a machine and keeps it where nobody else can write."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "core"
CACHE_VARIABLE: Final = "STALLSCOPE_CACHE_DIR"
COMPILER_VARIABLE: Final = "CC"
_FLAGS: Final = (
    *("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-fstack-protector-strong", "-Wl,-z,relro,-z,now"),
)
_SECONDS: Final = 60.0


class BuildError(RuntimeError):
    """No compiled core here, and why, in one line."""


def library() -> Path:
    """The shared library, built if this is the first time. Raises BuildError."""
    compiler = shutil.which(os.environ.get(COMPILER_VARIABLE) or "cc") or shutil.which("gcc")
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(" ".join((*_FLAGS, platform.machine(), *platform.libc_ver())).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    folder = private_folder()
    made = folder / f"resp-core-{digest.hexdigest()[:32]}.so"
    if is_ours(made):
        return made
    if compiler is None:
        raise BuildError("no C compiler: install gcc or name one in CC")
    _compile(compiler, [str(path) for path in sources if path.suffix == ".c"], made)
    return made


def _compile(compiler: str, sources: list[str], made: Path) -> None:
    # Under a name of its own, then renamed: another process never loads half a library.
    handle, name = tempfile.mkstemp(prefix="building-", suffix=".so", dir=made.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", name, *sources],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise BuildError(f"{compiler} failed: {(lines or ['no message'])[0].strip()[:160]}")
        os.chmod(name, 0o600)
        os.replace(name, made)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} could not be run: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def private_folder() -> Path:
    """The first candidate that is, or can be made, ours alone. Raises BuildError."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    chosen = os.environ.get(CACHE_VARIABLE)
    refused = ""
    for path in (
        [Path(chosen)]
        if chosen
        else [Path(home, "stallscope"), Path(tempfile.gettempdir(), f"stallscope-{os.getuid()}")]
    ):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.lstat()
        except OSError as error:
            refused = f"{path}: {error.strerror}"
            continue
        # Code is loaded from here: a folder that others can write is as good as theirs.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            refused = f"{path}: not a folder of this user"
        elif found.st_mode & 0o022:
            refused = f"{path}: others can write there"
        else:
            return path
    raise BuildError(f"no private folder for the compiled core: {refused}: set {CACHE_VARIABLE}")


def is_ours(path: Path) -> bool:
    """Whether the file is a regular one of this user that nobody else can write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
