"""What the speed rests on, held without a card: wide accesses, few registers, nothing spilled."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("triton")

from patched_engine.kernels import aot

# 128 threads a CTA: 32 registers let 16 CTAs share a multiprocessor, 48 let 10 (plan.py).
REGISTERS, BF16_CONTROL_REGISTERS = 32, 48


@pytest.mark.parametrize("architecture", aot.TRITON_ARCHITECTURES)
@pytest.mark.parametrize("fp8_input", [True, False])
@pytest.mark.parametrize("controls", [False, True])
def test_spec_a_compiles_wide_and_small(architecture: int, fp8_input: bool, controls: bool) -> None:
    built = aot.compile_activation(architecture, fp8_input=fp8_input, controls=controls)
    uncapped = controls and not fp8_input
    assert built.registers <= (BF16_CONTROL_REGISTERS if uncapped else REGISTERS)
    assert built.spill_bytes == built.stack_bytes == built.local_accesses == 0
    two_parts = controls and fp8_input
    assert built.wide_loads == (4 if two_parts or not fp8_input else 2)
    assert built.wide_stores == (2 if two_parts else 1)
    assert built.narrow_accesses == 0


@pytest.mark.parametrize("tile", [8, 24])
def test_small_tiles_compile_as_wide(tile: int) -> None:
    built = aot.compile_activation(90, tile=tile)
    assert (built.wide_loads, built.wide_stores, built.spill_bytes) == (2, 1, 0)


def test_the_scale_leaves_without_a_barrier() -> None:
    built = aot.compile_activation(90)
    assert built.sass
    assert "BAR.SYNC" not in built.sass


@pytest.mark.parametrize("controls", [False, True])
def test_a_span_asks_for_all_three_counts_before_it_may_leave(controls: bool) -> None:
    before_the_exit = aot.compile_activation(90, controls=controls).sass.split("EXIT")[0]
    assert before_the_exit.count("LDG") >= 3


def test_an_overlapped_launch_waits_before_it_reads() -> None:
    for built in (aot.compile_activation(90), aot.compile_vllm(90, one_item=True)):
        wait = built.ptx.index("griddepcontrol.wait")
        assert wait < built.ptx.index("ld.global")
        assert wait < built.ptx.index("st.global")


@pytest.mark.parametrize("architecture", aot.TRITON_ARCHITECTURES)
@pytest.mark.parametrize("alignment", [0, 128])
def test_spec_b_compiles_wide_and_small(architecture: int, alignment: int) -> None:
    built = aot.compile_vllm(architecture, alignment=alignment, use_ue8m0=True, has_clamp=True)
    assert built.registers <= 40
    assert built.spill_bytes == built.stack_bytes == built.local_accesses == 0
    assert built.wide_loads == 2
    assert built.narrow_accesses == 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("architecture", aot.CUDA_ARCHITECTURES)
def test_the_overlay_compiles_through_the_shim(architecture: str) -> None:
    variants = aot.compile_overlay(architecture)
    assert len(variants) == 4  # with and without controls, with and without dependent launch
    for built in variants:
        assert built.registers <= 64
        assert built.spill_bytes == built.stack_bytes == built.local_accesses == 0
        assert built.wide_loads >= 2
        assert built.wide_stores >= 1
        assert built.narrow_accesses == 0


def test_without_nvcc_the_overlay_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(aot.CompileUnavailable, match="nvcc is not on the PATH: install"):
        aot.compile_overlay("90a")
