"""The custom ops' shapes under fake tensors, and one clear line for what they cannot take."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from patched_engine.kernels import ops, vllm_ops  # noqa: E402
from patched_engine.kernels.spec import KernelInputError  # noqa: E402

FP8 = torch.float8_e4m3fn


def _call(**changes: Any) -> dict[str, Any]:
    rows, size = 64, 256
    call: dict[str, Any] = {
        "x": torch.zeros((rows, 2 * size), dtype=torch.uint8).view(FP8),
        "xs": torch.ones(4 * rows),
        "num_ctas": torch.ones(1, dtype=torch.int32),
        "mn_limit": torch.ones(1, dtype=torch.int32),
        "total_rows": torch.ones(1, dtype=torch.int32),
        "tile": 64,
        "rows_estimate": 64,
    }
    return call | changes


def test_fake_registration_gives_the_outputs_shapes() -> None:
    with FakeTensorMode():
        call = _call()
        y, ys = ops.swiglu_requant(**call)
        assert (y.shape, y.dtype) == ((64, 256), FP8)
        assert (ys.shape, ys.dtype) == ((128,), torch.float32)
        x = torch.empty((128, 512), dtype=torch.bfloat16)
        out = torch.empty((128, 256), dtype=FP8)
        scales = vllm_ops.silu_mul_quant_colmajor_op(x, out, False)
        assert (scales.shape, scales.dtype) == ((2, 128), torch.float32)


def test_the_ops_are_registered_under_our_namespace() -> None:
    for name in ("swiglu_requant", "swiglu_requant_into", "silu_mul_quant_colmajor"):
        assert hasattr(torch.ops.stallscope, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(64, 512)}, "x is torch.float32; it must be torch.float8_e4m3fn"),
        ({"tile": 12}, "tile is 12 rows; it must be a multiple of 8"),
        ({"xs": None}, "xs is missing: FP8 input needs its scales"),
        ({"xs": torch.ones(255)}, "xs holds 255 elements; at least 256 are needed"),
        ({"xs": torch.ones(256, dtype=torch.float64)}, "xs is torch.float64; it must be"),
        ({"num_ctas": torch.ones(1, dtype=torch.int64)}, "num_ctas is torch.int64"),
        ({"alpha": torch.ones(4)}, "alpha was given without expert_of_tile"),
        (
            {"x": torch.zeros((64, 512), dtype=torch.bfloat16)},
            "xs was given with bf16 input, which has no scales",
        ),
        ({"x": torch.zeros((64, 300), dtype=torch.bfloat16), "xs": None}, "is 150 columns"),
        ({}, "x is on cpu; the kernel runs on a CUDA device"),
    ],
)
def test_bad_input_gives_one_clear_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelInputError) as caught:
        ops.swiglu_requant(**_call(**change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misaligned_input_is_refused() -> None:
    raw = torch.zeros(64 * 512 + 1, dtype=torch.uint8)[1:].view(64, 512).view(FP8)
    with pytest.raises(KernelInputError, match="no multiple of 16 bytes"):
        ops.swiglu_requant(**_call(x=raw))


def test_spec_b_refuses_with_its_reason() -> None:
    with pytest.raises(KernelInputError, match=r"cannot take this call \(device\)"):
        vllm_ops.silu_mul_quant_colmajor(torch.zeros(128, 256), use_ue8m0=False)


def test_spec_b_grid_covers_small_calls_exactly() -> None:
    assert vllm_ops.plan_colmajor(128, 2048, 1, 132) == 16 * 16
    assert vllm_ops.plan_colmajor(32768, 2048, 1, 132) == 132 * 128
    assert vllm_ops.plan_colmajor(8192, 2048, 32, 132) * 32 <= 132 * 64
