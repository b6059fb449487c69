"""Reads a bundle or a recording: the pictures in it, judged as if they were taken now."""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from exporters.bundle import MANIFEST, PICTURES, SCHEMA
from exporters.recording import HEAD_START, RecordingError, read_lines
from exporters.rules import Rule
from exporters.snapshot import Evaluation

# Of what is unpacked: a small file may be made to unpack to anything.
_MOST_UNPACKED_BYTES: Final = 2_000_000_000
_MOST_MEMBERS: Final = 1000


class BundleError(ValueError):
    """A file that cannot be read as one; one line that says why."""


def read(path: Path) -> list[Evaluation]:
    """The pictures of a bundle or a recording, oldest first. Raises BundleError."""
    try:
        with path.open("rb") as file:
            is_recording = file.read(len(HEAD_START)) == HEAD_START
            file.seek(0)
            if is_recording:
                return read_lines(file, path.name)
            return _read_tar(file, path.name)
    except gzip.BadGzipFile as error:
        raise BundleError(f"{path.name}: is no bundle ({error})") from error
    except OSError as error:
        raise BundleError(f"{path.name}: {error.strerror or error}") from error
    except RecordingError as error:
        raise BundleError(str(error)) from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BundleError(f"{path.name}: is no whole bundle ({error})") from error


def _read_tar(file: IO[bytes], name: str) -> list[Evaluation]:
    """Members are looked at in place: nothing is written anywhere."""
    pictures: list[Evaluation] | None = None
    manifest: dict[str, Any] | None = None
    with (
        _Bounded(fileobj=file) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as tar,
    ):
        for number, member in enumerate(tar):
            if number >= _MOST_MEMBERS:
                raise BundleError(f"{name}: has more members than any bundle")
            if not member.isreg():
                continue
            content = tar.extractfile(member)
            if content is None:
                continue
            if member.name == PICTURES:
                pictures = read_lines(content, f"{name}: {PICTURES}")
            elif member.name == MANIFEST:
                manifest = _manifest(content.read(1_000_000), name)
    if manifest is None:
        raise BundleError(f"{name}: is no bundle: it has no {MANIFEST}")
    if manifest.get("stallscope_bundle") != SCHEMA:
        told = str(manifest.get("stallscope_bundle"))[:20]
        raise BundleError(f"{name}: is a bundle of version {told}; this reads {SCHEMA}")
    if pictures is None:
        raise BundleError(f"{name}: is no whole bundle: it has no {PICTURES}")
    return pictures


def _manifest(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{name}: {MANIFEST} is not JSON") from error
    if not isinstance(found, dict):
        raise BundleError(f"{name}: {MANIFEST} is no object")
    return found


class _Bounded(gzip.GzipFile):
    """Reads on until more was unpacked than any bundle holds."""

    unpacked_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.unpacked_bytes += len(data)
        if self.unpacked_bytes > _MOST_UNPACKED_BYTES:
            raise BundleError("it unpacks to more than any bundle holds")
        return data


class Recorded:
    """Stands in for an Evaluator: the newest picture, judged by today's rules.

    The findings keep the onset that was published with them.
    """

    def __init__(self, evaluations: Sequence[Evaluation], rules: Sequence[Rule]) -> None:
        self._newest = evaluations[-1]
        self._rules = tuple(rules)

    def look(self) -> Evaluation:
        from exporters.evaluator import FindingMemory, judge, worst_first

        snapshot = self._newest.snapshot
        verdicts = tuple(judge(rule, snapshot) for rule in self._rules)
        found = [f for verdict in verdicts for f in verdict.findings]
        dated = FindingMemory(self._newest.findings, snapshot.now_seconds).date(
            found, snapshot.now_seconds
        )
        order = {rule.name: i for i, rule in enumerate(self._rules)}
        return Evaluation(snapshot, worst_first(dated, order), verdicts)

    def tick(self) -> Evaluation:
        return self.look()

    def close(self) -> None:
        return
