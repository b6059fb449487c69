"""Spec (A) as one Triton kernel: SwiGLU and FP8 re-quantization over the compact expert rows.

Source of the spec: FlashInfer's DeepSeek activation (PR #3969 for the compact rows, #4405 for the
OAI controls); the code is our own.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

# A constexpr is the only global that a jitted function may read.
_NEG_LOG2E = tl.constexpr(-1.4426950408889634)
_MIN_SCALE = tl.constexpr(1.1754943508222875e-38)  # 2^-126
_INV_448 = tl.constexpr(1.0 / 448.0)
# exp(-g) is carried as 2^-32 of itself, so that it stays finite down to g = -109 (fp32 alone
# overflows at -88 and a flushed reciprocal at -87).
_SHIFT = tl.constexpr(32.0)
_TWO_M32 = tl.constexpr(2.0**-32)


@triton.jit
def _rcp(x):
    """1/x to 1 ulp, subnormal results flushed; the exact division costs 23 us at 8192 tokens."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _exp2(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def swiglu_requant_kernel(
    x_ptr,
    xs_ptr,
    y_ptr,
    ys_ptr,
    mn_limit_ptr,
    num_ctas_ptr,
    total_rows_ptr,
    expert_ptr,
    alpha_ptr,
    beta_ptr,
    limit_ptr,
    I: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    FP8_IN: tl.constexpr,
    HAS_ALPHA: tl.constexpr,
    HAS_BETA: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
):
    """One item is ROWS rows by 128 columns; column blocks vary fastest so that loads stream.

    x [P, 2I] e4m3fn or bf16, xs fp32 at blk*P + row, y [P, I] e4m3fn, ys fp32 at blk*P + row.
    """
    num_tiles = tl.load(num_ctas_ptr)
    scale_stride = tl.load(total_rows_ptr).to(tl.int64)
    BLOCKS: tl.constexpr = I // 128
    SUB: tl.constexpr = TILE // ROWS
    GENERAL: tl.constexpr = HAS_ALPHA or HAS_BETA or HAS_LIMIT or (not FP8_IN)
    total = num_tiles * SUB * BLOCKS
    for item in tl.range(tl.program_id(0), total, tl.num_programs(0)):
        block = item % BLOCKS
        group = item // BLOCKS
        tile = group // SUB
        rows = group * ROWS + tl.arange(0, ROWS)
        live = rows < tl.load(mn_limit_ptr + tile)
        live2 = live[:, None]
        rows64 = rows.to(tl.int64)
        cols = block * 128 + tl.arange(0, 128)
        x_at = rows64[:, None] * (2 * I) + cols[None, :]
        u = tl.load(x_ptr + x_at, mask=live2, other=0.0)
        g = tl.load(x_ptr + x_at + I, mask=live2, other=0.0)
        scale_at = block.to(tl.int64) * scale_stride + rows64
        if FP8_IN:
            su = tl.load(xs_ptr + scale_at, mask=live, other=0.0)
            sg = tl.load(xs_ptr + scale_at + BLOCKS * scale_stride, mask=live, other=0.0)
        u = u.to(tl.float32)
        g = g.to(tl.float32)
        if GENERAL:
            if FP8_IN:
                u = u * su[:, None]
                g = g * sg[:, None]
            if HAS_ALPHA or HAS_BETA or HAS_LIMIT:
                expert = tl.load(expert_ptr + tile)
            if HAS_LIMIT:
                # minimum/maximum keep the number when the other is NaN: a NaN becomes the limit.
                bound = tl.load(limit_ptr + expert)
                g = tl.minimum(g, bound)
                u = tl.maximum(tl.minimum(u, bound), -bound)
            slope = _NEG_LOG2E
            if HAS_ALPHA:
                slope = tl.load(alpha_ptr + expert) * _NEG_LOG2E
            if HAS_BETA:
                u = u + tl.load(beta_ptr + expert)
            sigmoid = _rcp(_TWO_M32 + _exp2(g * slope - _SHIFT)) * _TWO_M32
            v = (g * sigmoid) * u
            amax = tl.max(tl.abs(v), axis=1)
            scale = tl.maximum(amax * _INV_448, _MIN_SCALE)
            factor = _rcp(scale)
        else:
            # v carries 2^32 and neither input scale: they are per row, so they join afterwards.
            sigmoid = _rcp(_TWO_M32 + _exp2(g * (sg * _NEG_LOG2E)[:, None] - _SHIFT))
            v = (g * u) * sigmoid
            amax = tl.max(tl.abs(v), axis=1)
            # One scale at a time, so that neither their product nor its reciprocal underflows.
            true_max_over_448 = (amax * tl.abs(su)) * (tl.abs(sg) * (_TWO_M32 * _INV_448))
            scale = tl.maximum(true_max_over_448, _MIN_SCALE)
            factor = (su * _rcp(scale)) * (sg * _TWO_M32)
            # A zero block must give 0 (not inf * 0); a non-finite input scale must give NaN.
            factor = tl.where(amax > 0.0, factor, 0.0) + (su * 0.0 + sg * 0.0)
        q = (v * factor[:, None]).to(tl.float8e4nv)
        tl.store(y_ptr + rows64[:, None] * I + cols[None, :], q, mask=live2)
        tl.store(ys_ptr + scale_at, scale, mask=live)
