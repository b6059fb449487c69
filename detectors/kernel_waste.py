"""kernel-waste: a kernel takes much of the GPU's time and most of it does nothing (post, Bottleneck
2: one CTA for each (token, expert) slot, 7 of 8 of them another GPU's)."""

from __future__ import annotations

import re

from detectors import thresholds as t
from detectors.rule import Answer
from exporters.profile import KernelUse, Profile
from exporters.snapshot import Evidence, Finding

NAME = "kernel-waste"
# Launches one CTA for each (token, expert) slot of the whole group, local or not: FlashInfer's
# activation between the expert GEMMs, as it is before its PR 3969.
_ONE_CTA_PER_SLOT = re.compile(r"activationDeepSeek\w*", re.IGNORECASE)


def judge(profile: Profile) -> Answer:
    """One finding for each kernel with >= 5% of the GPU's time whose CTAs are mostly idle, or that
    moves known bytes at under a tenth of the memory's rate."""
    size = max((group.size for group in profile.groups), default=len(profile.ranks))
    heavy = [
        k for k in profile.kernels if k.kind == "kernel" and k.gpu_share >= t.KERNEL_TIME_SHARE
    ]
    found = []
    for kernel in heavy:
        evidence = [*_idle_ctas(kernel, size), *_slow_bytes(kernel, profile)]
        if evidence:
            found.append(_finding(kernel, evidence))
    return Answer(tuple(found))


def _idle_ctas(kernel: KernelUse, size: int) -> list[Evidence]:
    if not _ONE_CTA_PER_SLOT.search(kernel.name) or kernel.blocks <= 0 or size < 2:
        return []
    idle = 1 - 1 / size
    if idle < t.IDLE_CTA_SHARE:
        return []
    return [
        Evidence(
            "idle_cta_share",
            idle,
            t.IDLE_CTA_SHARE,
            "ratio",
            f"it launches {kernel.blocks:,} CTAs of {kernel.threads} threads, one for each (token, "
            f"expert) slot; with experts spread over {size} ranks about {size - 1} in {size} "
            f"({idle:.0%}) have nothing to do (limit {t.IDLE_CTA_SHARE:.0%})",
        )
    ]


def _slow_bytes(kernel: KernelUse, profile: Profile) -> list[Evidence]:
    rate, peak = kernel.bytes_per_second, profile.memory_bytes_per_second
    if rate is None or peak <= 0 or rate / peak >= t.KERNEL_BANDWIDTH_SHARE:
        return []
    return [
        Evidence(
            "bandwidth_share",
            rate / peak,
            t.KERNEL_BANDWIDTH_SHARE,
            "ratio",
            f"it moves its bytes at {rate / 1e9:.3g} GB/s, {rate / peak:.1%} of the memory's rate "
            f"(limit {t.KERNEL_BANDWIDTH_SHARE:.0%})",
        )
    ]


def _finding(kernel: KernelUse, evidence: list[Evidence]) -> Finding:
    share = Evidence(
        "gpu_share",
        kernel.gpu_share,
        t.KERNEL_TIME_SHARE,
        "ratio",
        f"{kernel.calls} calls of {kernel.median_seconds * 1e6:.0f} us take {kernel.gpu_share:.0%} "
        f"of the GPUs' time (limit {t.KERNEL_TIME_SHARE:.0%})",
    )
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"{short_name(kernel.name)} takes {kernel.gpu_share:.0%} of the GPUs' time, "
        f"most of it wasted",
        evidence=(share, *evidence),
        confidence=0.8,
        cause="idle-ctas" if evidence[0].name == "idle_cta_share" else "low-bandwidth",
    )


def short_name(name: str) -> str:
    """A kernel's name without its template arguments, parameters and return type."""
    bare = name.replace("(anonymous namespace)::", "")
    depth, kept = 0, []
    for letter in bare:
        depth += letter == "<"
        if not depth:
            if letter == "(":
                break
            kept.append(letter)
        depth -= letter == ">"
    return "".join(kept).removeprefix("void ").strip() or name[:80]
