"""The float64 references against cases worked by hand, since every kernel is judged by them."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from patched_engine.kernels.reference import (  # noqa: E402
    code_steps,
    decode_e4m3,
    encode_e4m3,
    silu_mul_quant_reference,
    swiglu_requant_reference,
)
from patched_engine.kernels.spec import MIN_SCALE  # noqa: E402

FP8 = torch.float8_e4m3fn


def _row(linear: float, gate: float, dtype: torch.dtype = FP8) -> torch.Tensor:
    return torch.tensor([[linear] * 128 + [gate] * 128]).to(dtype)


def test_every_finite_code_survives_a_round_trip() -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    assert torch.equal(encode_e4m3(decode_e4m3(codes)), codes)


def test_decoding_agrees_with_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    want = codes.view(FP8).to(torch.float64)
    assert torch.equal(decode_e4m3(codes).nan_to_num(999.0), want.nan_to_num(999.0))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1.0, 0x38),
        (1.0625, 0x38),  # halfway between 1 and 1.125: the even code
        (1.1875, 0x3A),  # halfway between 1.125 and 1.25: the even code
        (448.0, 0x7E),
        (1e9, 0x7E),  # saturates
        (-1e9, 0xFE),
        (2.0**-9, 0x01),
        (2.0**-10, 0x00),  # halfway to the least subnormal: even
        (-0.0, 0x80),
        (math.nan, 0x7F),
    ],
)
def test_encoding_by_hand(value: float, code: int) -> None:
    assert int(encode_e4m3(torch.tensor([value], dtype=torch.float64))[0]) == code


def test_code_steps_cross_zero_and_refuse_nan_for_a_number() -> None:
    got = torch.tensor([0x80, 0x81, 0x7F, 0x7F, 0x38], dtype=torch.uint8)
    want = torch.tensor([0x00, 0x01, 0xFF, 0x38, 0x39], dtype=torch.uint8)
    assert code_steps(got, want).tolist() == [0, 2, 0, 255, 1]


def test_spec_a_by_hand() -> None:
    """u = 2 * 0.5 = 1, g = 4 * 0.25 = 1: v = 1 / (1 + 1/e) everywhere, so every code is 448."""
    codes, scales = swiglu_requant_reference(_row(2.0, 4.0), torch.tensor([[0.5, 0.25]]))
    assert scales.shape == (1, 1)
    assert float(scales[0, 0]) == pytest.approx(1 / (1 + math.exp(-1)) / 448, rel=1e-15)
    assert codes.tolist() == [[0x7E] * 128]


def test_spec_a_takes_the_linear_half_first() -> None:
    """Linear 0 gives 0 whatever the gate; gate 0 gives 0 whatever the linear half."""
    for row in (_row(0.0, 3.0), _row(3.0, 0.0)):
        codes, scales = swiglu_requant_reference(row, torch.ones(1, 2))
        assert codes.tolist() == [[0] * 128]
        assert float(scales[0, 0]) == MIN_SCALE
    linear_only = swiglu_requant_reference(_row(3.0, -100.0), torch.ones(1, 2))
    gate_only = swiglu_requant_reference(_row(-104.0, 3.0), torch.ones(1, 2))
    assert float(linear_only[1][0, 0]) == MIN_SCALE  # 3 * -104 * e^-104 is far below it
    assert float(gate_only[1][0, 0]) == pytest.approx(104 * 3 / (1 + math.exp(-3)) / 448)


def test_spec_a_nan_element_leaves_the_scale_alone() -> None:
    row = _row(1.0, 2.0).view(torch.uint8)
    row[0, 3] = 0x7F
    codes, scales = swiglu_requant_reference(row.view(FP8), torch.ones(1, 2))
    assert int(codes[0, 3]) == 0x7F
    assert set(codes[0].tolist()) == {0x7F, 0x7E}
    assert float(scales[0, 0]) == pytest.approx(2 / (1 + math.exp(-2)) / 448)


def test_spec_a_infinite_value_gives_an_infinite_scale() -> None:
    row = _row(1.0, 2.0, torch.bfloat16)
    row[0, 5] = math.inf
    codes, scales = swiglu_requant_reference(row, None)
    assert math.isinf(float(scales[0, 0]))
    assert int(codes[0, 5]) == 0x7F
    assert int(codes[0, 6]) == 0


def test_spec_a_oai_controls_by_hand() -> None:
    """limit 3: g = min(4, 3), u = clamp(-8) = -3; v = 3 * sigmoid(2 * 3) * (-3 + 1)."""
    one = torch.ones(1)
    codes, scales = swiglu_requant_reference(
        _row(-8.0, 4.0), torch.ones(1, 2), alpha=2 * one, beta=one, limit=3 * one
    )
    assert float(scales[0, 0]) == pytest.approx(6 / (1 + math.exp(-6)) / 448, rel=1e-15)
    assert set(codes[0].tolist()) == {0xFE}


def test_spec_a_oai_nan_becomes_the_limit() -> None:
    row = torch.full((1, 256), 0x7F, dtype=torch.uint8).view(FP8)
    limit = torch.tensor([2.0])
    codes, scales = swiglu_requant_reference(row, torch.ones(1, 2), limit=limit)
    assert float(scales[0, 0]) == pytest.approx(2 / (1 + math.exp(-2)) * 2 / 448, rel=1e-15)
    assert set(codes[0].tolist()) == {0x7E}


def test_spec_a_scales_per_block_and_row() -> None:
    row = torch.ones(2, 512).to(FP8)
    scales_in = torch.tensor([[1.0, 2.0, 1.0, 1.0], [4.0, 8.0, 1.0, 1.0]])
    _, scales = swiglu_requant_reference(row, scales_in)
    unit = 1 / (1 + math.exp(-1)) / 448
    want = torch.tensor([[1.0, 2.0], [4.0, 8.0]], dtype=torch.float64) * unit
    assert torch.allclose(scales, want, rtol=1e-15, atol=0)


def test_spec_b_takes_the_gate_half_first_and_rounds_to_bf16() -> None:
    """silu(1) = 0.7310586 is 0.73046875 in bf16; times 3 is 2.19140625, in bf16 2.1875."""
    row = torch.tensor([[1.0] * 128 + [3.0] * 128]).to(torch.bfloat16)
    codes, scales = silu_mul_quant_reference(row)
    assert float(scales[0, 0]) == 2.1875 / 448
    assert set(codes[0].tolist()) == {0x7E}


def test_spec_b_eps_and_ue8m0() -> None:
    zero = torch.zeros(1, 256, dtype=torch.bfloat16)
    assert float(silu_mul_quant_reference(zero)[1][0, 0]) == pytest.approx(1e-10 / 448)
    row = torch.tensor([[1.0] * 128 + [3.0] * 128]).to(torch.bfloat16)
    _, scales = silu_mul_quant_reference(row, use_ue8m0=True)
    assert float(scales[0, 0]) == 2.0**-7  # 2.1875 / 448 = 2^-7.68, rounded up


def test_spec_b_clamp_alpha_and_beta() -> None:
    """gate min(8, 2) = 2; up clamp(-9) = -2, + 1 = -1; v = -2 * sigmoid(0.5 * 2) to bf16."""
    row = torch.tensor([[8.0] * 128 + [-9.0] * 128]).to(torch.bfloat16)
    _, scales = silu_mul_quant_reference(row, clamp_limit=2.0, alpha=0.5, beta=1.0)
    glu = torch.tensor(2 / (1 + math.exp(-1))).to(torch.bfloat16)
    assert float(scales[0, 0]) == float(glu) / 448
