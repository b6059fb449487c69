"""The rules of a profile on both sides of each limit, and unable to tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detectors import idle_gpu, kernel_waste, late_in_profile
from detectors.kernel_waste import short_name
from exporters.profile import (
    Doing,
    GpuGap,
    GroupWaits,
    KernelUse,
    LateRank,
    Profile,
    RankProfile,
)


def rank(number: int, busy: float | None = 0.9, wall: float = 1.0) -> RankProfile:
    return RankProfile(number, wall, busy, busy, 10, 0.1, 0, 0, 0.0, 0.0)


LATE = LateRank(0, 1.4, 0.95, 0.9, 40, 1e-6, 0.2, 0.9, True, True)
GROUP = GroupWaits("", tuple(range(8)), 8, {"all_gather": 40}, 40, 0)
# The post, Bottleneck 2.
ACTIVATION = KernelUse(
    name="void moe::dev::activation::activationDeepSeekKernel<Params<8, float>>(Params)",
    kind="kernel",
    calls=60,
    seconds=0.094,
    gpu_share=0.17,
    blocks=16 * 8192 * 8,
    threads=128,
    median_seconds=1.572e-3,
)


def profile(**changes: object) -> Profile:
    whole = Profile(1.0, tuple(rank(r) for r in range(8)), (GROUP,), (), LATE)
    return replace(whole, **changes)


def test_a_late_rank_is_a_straggler_with_what_it_did() -> None:
    copied = Doing("copy", "memcpy DtoH", 0.8, 0.8, 0.1, 19_100_000_000)
    late = replace(LATE, meanwhile=(copied,))
    (finding,) = late_in_profile.judge(profile(late=late)).findings
    assert (finding.id, finding.rank, finding.severity) == ("straggler-rank", 0, "critical")
    assert finding.cause == "d2h-copy"
    assert any("19.1 GB" in e.text for e in finding.evidence)


@pytest.mark.parametrize(
    "late",
    [None, replace(LATE, is_clear=False), replace(LATE, lost_share=0.049)],
    ids=["nobody", "not clear", "little lost"],
)
def test_no_straggler(late: LateRank | None) -> None:
    assert late_in_profile.judge(profile(late=late)).findings == ()


@pytest.mark.parametrize(("name", "cause"), [("LMCacheEngine.store", "store"), ("load", "load")])
def test_a_range_names_the_cause(name: str, cause: str) -> None:
    late = replace(LATE, meanwhile=(Doing("range", name, 0.5, 0.5, 0.1),))
    assert late_in_profile.cause_of(late) == cause


def test_what_is_always_there_is_no_cause() -> None:
    late = replace(LATE, meanwhile=(Doing("range", "execute_model_store", 1.0, 1.0, 1.0),))
    assert late_in_profile.cause_of(late) == ""


@pytest.mark.parametrize(("busy", "fires"), [(0.71, False), (0.69, True)])
def test_idle_gpu_at_its_limit(busy: float, fires: bool) -> None:
    ranks = (rank(0), replace(rank(1, busy), gaps=(GpuGap(0.1, 0.2, "retrieve"),)))
    answer = idle_gpu.judge(profile(ranks=ranks))
    assert bool(answer.findings) == fires
    if fires:
        assert answer.findings[0].rank == 1
        assert any("'retrieve'" in e.text for e in answer.findings[0].evidence)


def test_idle_gpu_cannot_tell_without_a_gpu_or_from_a_moment() -> None:
    assert "no GPU" in idle_gpu.judge(profile(ranks=(rank(0, None),))).abstained
    assert "needs" in idle_gpu.judge(profile(ranks=(rank(0, 0.01, 0.05),))).abstained


def test_the_post_s_activation_kernel_is_waste() -> None:
    (finding,) = kernel_waste.judge(profile(kernels=(ACTIVATION,))).findings
    assert (finding.id, finding.cause) == ("kernel-waste", "idle-ctas")
    assert "activationDeepSeekKernel takes 17%" in finding.summary
    assert any("7 in 8" in e.text and "1,048,576" in e.text for e in finding.evidence)


@pytest.mark.parametrize(
    "kernel",
    [
        replace(ACTIVATION, gpu_share=0.049),
        replace(ACTIVATION, name="elementwise_kernel"),
        replace(ACTIVATION, blocks=0),
    ],
    ids=["little time", "another kernel", "no launch shape"],
)
def test_no_waste(kernel: KernelUse) -> None:
    assert kernel_waste.judge(profile(kernels=(kernel,))).findings == ()


def test_no_waste_on_one_rank() -> None:
    alone = profile(kernels=(ACTIVATION,), groups=(), ranks=(rank(0),))
    assert kernel_waste.judge(alone).findings == ()


@pytest.mark.parametrize(("share", "fires"), [(0.11, False), (0.02, True)])
def test_known_bytes_against_the_memory_s_rate(share: float, fires: bool) -> None:
    kernel = replace(ACTIVATION, name="x", bytes=int(8e12 * share * ACTIVATION.seconds))
    one = profile(kernels=(kernel,), memory_bytes_per_second=8e12)
    assert bool(kernel_waste.judge(one).findings) == fires
    assert kernel_waste.judge(replace(one, memory_bytes_per_second=0.0)).findings == ()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::(anonymous namespace)::Cat<float, 3>(float*, int)", "at::native::Cat"),
        (
            "ncclDevKernel_AllGather_RING_LL(args<(unsigned long)4096>)",
            "ncclDevKernel_AllGather_RING_LL",
        ),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
