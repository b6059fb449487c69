"""What a set of profile files says to a person or a script: figures, findings, what is unseen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detectors.late_in_profile import CLEAR
from detectors.profile_rules import PROFILE_RULES
from exporters import reasons
from exporters.profile import Profile
from exporters.snapshot import Finding, Unseen
from runbooks.cli import exit_codes
from runbooks.library import page_names

if TYPE_CHECKING:
    from exporters.readers.profiles.load import Recording
    from exporters.readers.profiles.waits import Waits

SCHEMA: Final = 1
_ORDER: Final = {"critical": 0, "warning": 1, "info": 2}
_EXIT_CODES: Final = {"critical": exit_codes.CRITICAL, "warning": exit_codes.WARNING}


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The answers of one set of files; `recording` and `waits` are what they rest on."""

    profile: Profile
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]
    recording: Recording
    waits: tuple[Waits, ...]

    @property
    def answered(self) -> bool:
        """Whether anything could be told: without it there is no table, only reasons."""
        return bool(self.profile.ranks)

    @property
    def exit_code(self) -> int:
        """The worst finding's; without one, whether all that was asked for was seen."""
        worst = max((_EXIT_CODES.get(f.severity, 0) for f in self.findings), default=0)
        return worst or (exit_codes.UNSEEN if self.unseen else exit_codes.OK)

    def as_json(self) -> dict[str, Any]:
        """The documented schema: plain JSON types, null for what cannot be told."""
        profile = self.profile
        return json_object(
            {
                "schema": SCHEMA,
                "wall_seconds": profile.wall_seconds,
                "files": [asdict(file) for file in self.recording.files],
                "world_size": self.recording.world_size or None,
                "device": profile.device or None,
                "late": asdict(profile.late) if profile.late else None,
                "ranks": [
                    {**asdict(rank), "idle_share": rank.idle_share} for rank in profile.ranks
                ],
                "groups": [asdict(group) for group in profile.groups],
                "wait_rank_seconds_by_op": dict(profile.op_waits),
                "kernels": [
                    {**asdict(k), "bytes_per_second": k.bytes_per_second} for k in profile.kernels
                ],
                "findings": [
                    {**asdict(f), "runbook": f.id if f.id in page_names() else ""}
                    for f in self.findings
                ],
                "unseen": [asdict(unseen) for unseen in self.unseen],
            }
        )


def make_trace_report(paths: Sequence[Path], ranks: Sequence[int] = ()) -> TraceReport:
    """Read the files and judge them. Raises ProfileError where two files claim one rank."""
    from exporters.readers.profiles.summary import read

    profile, unseen, recording, waits = read(paths, ranks, CLEAR)
    findings: list[Finding] = []
    missing = list(unseen)
    for rule in PROFILE_RULES if profile.ranks else ():
        answer = rule.judge(profile)
        findings += answer.findings
        # That no GPU was recorded is told once, by the reader, which knows the mend.
        if answer.abstained and not any(u.source in ("GPU", "timeline") for u in unseen):
            detail = f"{rule.name} cannot be decided: {answer.abstained}"
            missing.append(Unseen(rule.name, answer.reason, detail, "record for longer"))
    findings.sort(key=lambda f: _ORDER.get(f.severity, 9))
    if not recording.files and not missing:
        missing.append(Unseen("files", reasons.EMPTY_FOLDER, "no profile was given"))
    return TraceReport(profile, tuple(findings), tuple(missing), recording, waits)


def json_object(value: Mapping[str, Any]) -> dict[str, Any]:
    """`plain` of a mapping."""
    return {key: plain(item) for key, item in value.items()}


def plain(value: Any) -> Any:
    """JSON types only: NaN and infinity become null, tuples lists, keys text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
