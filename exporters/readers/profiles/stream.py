"""Bytes of a file, packed or not, read a piece at a time: no file has to fit in memory."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import Final

from exporters import reasons
from exporters.readers.profiles.errors import ProfileError

PIECE_BYTES: Final = 64 << 10
GZIP_MAGIC: Final = b"\x1f\x8b"
# Profilers' JSON packs 10 to 50 times; what unpacks to more than this was made to fill a disk.
_MAX_RATIO: Final = 400
_RATIO_FROM_BYTES: Final = 256 << 20


class Source:
    """Reads a regular file, unpacking gzip. Raises ProfileError where it is cut short, damaged,
    not readable, or a bomb."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        self._packed_bytes = os.fstat(self._file.fileno()).st_size
        self.is_packed = self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        self._file.seek(0)
        self._stream = gzip.GzipFile(fileobj=self._file) if self.is_packed else self._file

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, size: int = PIECE_BYTES) -> bytes:
        """Up to `size` bytes; b"" at the end."""
        try:
            piece: bytes = self._stream.read(size)
        except EOFError as error:
            raise self.cut_short("its gzip stream is cut short") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ProfileError(
                str(self.path), reasons.UNREADABLE, f"its gzip stream is damaged ({error})", _COPY
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.read_bytes += len(piece)
        if (
            self.is_packed
            and self.read_bytes > _RATIO_FROM_BYTES
            and self.read_bytes > _MAX_RATIO * self._packed_bytes
        ):
            raise ProfileError(
                str(self.path),
                reasons.UNREADABLE,
                f"unpacks to more than {_MAX_RATIO} times its {self._packed_bytes} bytes",
                "no profiler writes that; unpack it yourself if you trust it",
            )
        return piece

    def cut_short(self, how: str) -> ProfileError:
        """The refusal of a file that ends too early."""
        return ProfileError(str(self.path), reasons.TRUNCATED, how, _COPY)


_COPY: Final = "copy it again, or record again and wait until the profiler has written it"


def unreadable(path: Path, error: Exception) -> ProfileError:
    """The refusal of what the system does not let us read."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return ProfileError(str(path), reasons.UNREADABLE, f"cannot be read: {text}")
