"""The one way in which a profile is refused: one line with what is wrong, where, and the mend."""

from __future__ import annotations


class ProfileError(Exception):
    """A file that cannot be read as a profile. `reason` is one of `exporters.reasons`."""

    def __init__(self, path: str, reason: str, what: str, mend: str = "") -> None:
        super().__init__(path, reason, what, mend)
        self.path = path
        self.reason = reason
        self.what = what
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" + (f"; {self.mend}" if self.mend else "")
