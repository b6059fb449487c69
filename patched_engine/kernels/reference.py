"""Both activation specs in float64, row by row and plainly, to judge every kernel by.

Nothing here is fast. Values follow fp32's range where the spec says fp32 math: what would
overflow an fp32 is infinite, and what lies under its least subnormal is zero.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from patched_engine.kernels.spec import E4M3_MAX, GROUP, MIN_SCALE

_FP32_MAX = torch.finfo(torch.float32).max
NAN_CODE = 0x7F
"""The e4m3fn NaN (0xFF with the sign bit)."""


@cache
def _magnitudes() -> torch.Tensor:
    """The 127 finite e4m3fn magnitudes by code, float64: subnormal steps of 2^-9, then binades."""
    values = [code * 2.0**-9 for code in range(8)]
    values += [(1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7) for code in range(8, 127)]
    return torch.tensor(values, dtype=torch.float64)


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """uint8 or e4m3fn codes, any shape -> float64 values."""
    raw = codes.view(torch.uint8).cpu().to(torch.int64)
    table = torch.cat([_magnitudes(), torch.tensor([math.nan], dtype=torch.float64)])
    return torch.where(raw >= 128, -table[raw & 127], table[raw & 127])


def encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """float64 values -> uint8 codes: nearest, ties to the even code, saturating, NaN to 0x7F."""
    magnitude = values.abs().clamp(max=E4M3_MAX)
    table = _magnitudes()
    above = torch.searchsorted(table, torch.nan_to_num(magnitude).contiguous()).clamp(1, 126)
    below = above - 1
    to_above, to_below = table[above] - magnitude, magnitude - table[below]
    even_above = above % 2 == 0
    code = torch.where((to_above < to_below) | ((to_above == to_below) & even_above), above, below)
    code = torch.where(torch.signbit(values), code + 128, code)
    return torch.where(values.isnan(), torch.full_like(code, NAN_CODE), code).to(torch.uint8)


def code_steps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Steps between two code tensors (uint8), int64: 0 when equal, +0 and -0 and NaNs alike.

    A NaN against a number counts 255.
    """

    def ordinal(codes: torch.Tensor) -> torch.Tensor:
        raw = codes.view(torch.uint8).cpu().to(torch.int64)
        return torch.where(raw >= 128, -(raw & 127), raw)

    left, right = ordinal(got), ordinal(want)
    left_nan, right_nan = left.abs() == NAN_CODE, right.abs() == NAN_CODE
    steps = (left - right).abs()
    steps = torch.where(left_nan & right_nan, torch.zeros_like(steps), steps)
    return torch.where(left_nan ^ right_nan, torch.full_like(steps, 255), steps)


def _fp32_range(values: torch.Tensor) -> torch.Tensor:
    """float64 with fp32's range: beyond its largest, infinite."""
    return torch.where(values.abs() > _FP32_MAX, torch.sign(values) * math.inf, values)


def _quantize(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """v float64 [rows, I] -> (uint8 codes [rows, I], float64 scales [rows, I/128])."""
    grouped = v.reshape(v.shape[0], -1, GROUP)
    amax = torch.where(grouped.isnan(), torch.zeros_like(grouped), grouped.abs()).amax(dim=2)
    scale = torch.clamp(amax / E4M3_MAX, min=MIN_SCALE)
    return encode_e4m3(grouped / scale[:, :, None]).reshape(v.shape), scale


def swiglu_requant_reference(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    alpha: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    limit: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Spec (A) for the given rows alone, in float64.

    x: e4m3fn or bf16 [rows, 2I], linear half first; xs: fp32 [rows, 2I/128] (row-major here) or
    None with bf16; alpha, beta, limit: [rows], each row's expert's own. Returns (uint8 codes
    [rows, I], float64 scales [rows, I/128]).
    """
    is_fp8 = x.dtype == torch.float8_e4m3fn
    values = decode_e4m3(x) if is_fp8 else x.cpu().to(torch.float64)
    if xs is not None:
        values = values * xs.cpu().to(torch.float64).repeat_interleave(GROUP, dim=1)
    values = _fp32_range(values)
    half = values.shape[1] // 2
    u, g = values[:, :half], values[:, half:]
    if limit is not None:
        bound = limit.cpu().to(torch.float64)[:, None].expand_as(g)
        # C's fmin and fmax: the number wins over a NaN.
        g = torch.fmin(g, bound)
        u = torch.fmax(torch.fmin(u, bound), -bound)
    slope = 1.0 if alpha is None else alpha.cpu().to(torch.float64)[:, None]
    shift = 0.0 if beta is None else beta.cpu().to(torch.float64)[:, None]
    v = _fp32_range(g / (1 + torch.exp(-slope * g)) * (u + shift))
    return _quantize(v)


def silu_mul_quant_reference(
    x: torch.Tensor,
    *,
    use_ue8m0: bool = False,
    eps: float = 1e-10,
    clamp_limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Spec (B) for the given rows, in float64 with the spec's own roundings to the input dtype.

    x: bf16 or fp16 [rows, 2I], gate half first. Returns (uint8 codes [rows, I], float64 scales
    [rows, I/128]). Rounding to the input dtype follows a step through fp32, as the spec has it.
    """

    def narrow(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.float32).to(x.dtype).to(torch.float64)

    values = x.cpu().to(torch.float64)
    half = values.shape[1] // 2
    gate, up = values[:, :half], values[:, half:]
    if clamp_limit is not None:
        gate = narrow(torch.fmin(gate, torch.full_like(gate, clamp_limit)))
        up = narrow(up.clamp(-clamp_limit, clamp_limit))
    glu = narrow(gate / (1 + torch.exp(-gate * alpha)))
    v = narrow(glu * narrow(up + beta))
    grouped = v.reshape(v.shape[0], -1, GROUP)
    amax = torch.where(grouped.isnan(), torch.zeros_like(grouped), grouped.abs()).amax(dim=2)
    scale = torch.clamp(amax, min=eps) / E4M3_MAX
    if use_ue8m0:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return encode_e4m3(grouped / scale[:, :, None]).reshape(v.shape), scale
