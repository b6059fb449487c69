"""Read a folder of pages: the newest page of every engine process, and what could not be read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from exporters import reasons
from exporters.page_layout import SUFFIX
from exporters.readers.page import PageReader, PageSample, Unreadable
from exporters.snapshot import Unseen

_MEND_FOLDER = "give the folder that the engine has in STALLSCOPE_DIR"


@dataclass(frozen=True, slots=True)
class FolderSample:
    """All pages of a folder at one tick, and what of it is unseen."""

    pages: tuple[PageSample, ...]
    unseen: tuple[Unseen, ...]


class PageFolder:
    """Keeps every page of one folder open between ticks; `read` never raises for bad content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, PageReader] = {}
        self._boot_id = boot_id()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def read(self, now_ns: int) -> FolderSample:
        """Every page now; `now_ns` is CLOCK_MONOTONIC, against which ages are taken."""
        try:
            names = sorted(n for n in os.listdir(self._folder) if n.endswith(SUFFIX))
        except OSError as error:
            self.close()
            return FolderSample((), (self._folder_unseen(error),))
        unseen = self._open(names)
        if not names:
            unseen.append(
                Unseen(
                    str(self._folder),
                    reasons.EMPTY_FOLDER,
                    f"no page in {self._folder}",
                    "start the engine with STALLSCOPE_DIR set to this folder",
                )
            )
        pages = []
        for reader in self._newest(unseen):
            try:
                pages.append(reader.read(now_ns))
            except Unreadable as error:
                unseen.append(_unseen(reader.path, error))
            except OSError as error:  # the file system itself failed
                unseen.append(
                    Unseen(reader.path.name, reasons.UNREADABLE, f"{reader.path.name}: {error}")
                )
        unseen.extend(self._torn(pages))
        return FolderSample(tuple(pages), tuple(unseen))

    def _folder_unseen(self, error: OSError) -> Unseen:
        folder = str(self._folder)
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            what = "no such folder" if isinstance(error, FileNotFoundError) else "not a folder"
            return Unseen(folder, reasons.MISSING_FOLDER, f"{what}: {folder}", _MEND_FOLDER)
        return Unseen(
            folder,
            reasons.UNREADABLE,
            f"cannot list {folder}: {error.strerror}",
            "let this user list the folder of pages",
        )

    def _open(self, names: Iterable[str]) -> list[Unseen]:
        """Open what is new, let go of what is gone or was replaced under the same name."""
        unseen = []
        present = set(names)
        for name in [n for n in self._readers if n not in present]:
            self._readers.pop(name).close()
        for name in sorted(present):
            path = self._folder / name
            if name in self._readers and not _same_file(path, self._readers[name]):
                self._readers.pop(name).close()
            if name in self._readers:
                continue
            try:
                self._readers[name] = PageReader(path, self._boot_id)
            except Unreadable as error:
                if os.path.lexists(path):  # else its process ended between the listing and now
                    unseen.append(_unseen(path, error))
        return unseen

    def _newest(self, unseen: list[Unseen]) -> list[PageReader]:
        """One reader per identity, the one that started last. An older one that still runs is
        named: two engines share an id, and only one of them is shown."""
        newest: dict[object, PageReader] = {}
        for reader in sorted(self._readers.values(), key=lambda r: r.header.start_ns):
            try:
                reader.refresh_info()
                identity: object = reader.identity() if reader.info else reader.path
                older = newest.get(identity)
                if older is not None and older.is_alive():
                    unseen.append(
                        Unseen(
                            older.path.name,
                            reasons.DUPLICATE,
                            f"{older.path.name}: a running process says it is engine "
                            f"{reader.identity()[0]!r} rank {reader.identity()[2]}, as does "
                            f"{reader.path.name}",
                            "give each engine its own id or its own folder of pages",
                        )
                    )
            except OSError:
                identity = reader.path  # `read` will say why
            newest[identity] = reader
        return list(newest.values())

    def _torn(self, pages: Iterable[PageSample]) -> list[Unseen]:
        return [
            Unseen(
                page.process.page,
                reasons.TORN,
                f"{page.process.page}: {page.torn_at_rest} records are damaged and left out",
                "none needed: the other records stand; restart that process if the number grows",
            )
            for page in pages
            if page.torn_at_rest
        ]


def _unseen(path: Path, error: Unreadable) -> Unseen:
    return Unseen(path.name, error.reason, error.detail, error.mend)


def _same_file(path: Path, reader: PageReader) -> bool:
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) == reader.file_id()
    except OSError:
        return False


def boot_id() -> str:
    """The id of this boot of the host, or "" where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
