"""The rules of a profile: like a page's, but over a record that has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from detectors import idle_gpu, kernel_waste, late_in_profile
from detectors.rule import Answer
from exporters.profile import Profile


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """A pure function of one Profile; `name` is the id of its findings."""

    name: str
    judge: Callable[[Profile], Answer]


PROFILE_RULES: Final[tuple[ProfileRule, ...]] = (
    ProfileRule(late_in_profile.NAME, late_in_profile.judge),
    ProfileRule(idle_gpu.NAME, idle_gpu.judge),
    ProfileRule(kernel_waste.NAME, kernel_waste.judge),
)
