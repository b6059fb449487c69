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
    last_tile,
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
    ``last_tile``: the last index that may be read from mn_limit, whatever num_ctas says.
    """
    BLOCKS: tl.constexpr = I // 128
    SUB: tl.constexpr = TILE // ROWS
    PER_TILE: tl.constexpr = SUB * BLOCKS
    CONTROLS: tl.constexpr = HAS_ALPHA or HAS_BETA or HAS_LIMIT
    first_item = tl.program_id(0)
    step = tl.num_programs(0)
    # Three independent loads: asked for together, they cost one trip to memory instead of three.
    total = tl.load(num_ctas_ptr) * PER_TILE
    scale_stride = tl.load(total_rows_ptr)
    row_limit = tl.load(mn_limit_ptr + tl.minimum(first_item // PER_TILE, last_tile))
    # What does not change from item to item, so that an item only adds scalars.
    row = tl.arange(0, ROWS)
    col = tl.arange(0, 128)
    x_tile = row[:, None] * (2 * I) + col[None, :]
    y_tile = row[:, None] * I + col[None, :]
    # A row's scale sits in all eight lanes that share the row, so one of them can write it from its
    # register. Triton lays a store out along its longest run of addresses, and taking the rows for
    # a run costs a trip through shared memory and two barriers: row * 3 // 3 hides that run.
    lane = tl.arange(0, 8)
    writer = (lane == 0)[None, :]
    scale_tile = (row * 3 // 3)[:, None] + lane[None, :]
    expert = 0
    if CONTROLS:
        expert = tl.load(expert_ptr + tl.minimum(first_item // PER_TILE, last_tile))
    for item in tl.range(first_item, total, step):
        next_tile = tl.minimum((item + step) // PER_TILE, last_tile)
        next_limit = tl.load(mn_limit_ptr + next_tile)
        next_expert = 0
        if CONTROLS:
            next_expert = tl.load(expert_ptr + next_tile)
        block = item % BLOCKS
        first = item // BLOCKS * ROWS
        if first < row_limit:
            live = row < row_limit - first
            live2 = live[:, None]
            x_at = x_ptr + (first.to(tl.int64) * (2 * I) + block * 128)
            u = tl.load(x_at + x_tile, mask=live2, other=0.0)
            g = tl.load(x_at + I + x_tile, mask=live2, other=0.0)
            scale_at = block.to(tl.int64) * scale_stride + first
            if FP8_IN:
                xs_at = xs_ptr + scale_at
                su = tl.load(xs_at + row, mask=live, other=0.0)
                sg = tl.load(xs_at + BLOCKS * scale_stride.to(tl.int64) + row, mask=live, other=0.0)
            u = u.to(tl.float32)
            g = g.to(tl.float32)
            if CONTROLS or not FP8_IN:
                slope = _NEG_LOG2E
                if HAS_ALPHA:
                    slope = tl.load(alpha_ptr + expert) * _NEG_LOG2E
                if FP8_IN:
                    # The linear half carries 2^-32 from here on, against the sigmoid's 2^32.
                    u = u * (su * _TWO_M32)[:, None]
                    g = g * sg[:, None]
                else:
                    u = u * _TWO_M32
                if HAS_LIMIT:
                    # minimum and maximum keep the number beside a NaN: a NaN becomes the limit.
                    bound = tl.load(limit_ptr + expert)
                    g = tl.minimum(g, bound)
                    bound = bound * _TWO_M32
                    u = tl.maximum(tl.minimum(u, bound), -bound)
                if HAS_BETA:
                    u = u + tl.load(beta_ptr + expert) * _TWO_M32
                v = (g * _rcp(_TWO_M32 + _exp2(g * slope - _SHIFT))) * u
                amax = tl.max(tl.abs(v), axis=1)
                scale = tl.maximum(amax * _INV_448, _MIN_SCALE)
                factor = _rcp(scale)
            else:
                # v carries 2^32 and neither input scale: they are per row, so they join afterwards.
                sigmoid = _rcp(_TWO_M32 + _exp2(g * (sg * _NEG_LOG2E)[:, None] - _SHIFT))
                v = (g * u) * sigmoid
                amax = tl.max(tl.abs(v), axis=1)
                # The larger scale meets the constants and the smaller one the maximum, so that no
                # intermediate leaves fp32's range unless the result does.
                linear_larger = tl.abs(su) >= tl.abs(sg)
                larger = tl.where(linear_larger, su, sg)
                smaller = tl.where(linear_larger, sg, su)
                max_over_448 = (amax * tl.abs(smaller)) * (tl.abs(larger) * (_TWO_M32 * _INV_448))
                scale = tl.maximum(max_over_448, _MIN_SCALE)
                factor = (_rcp(scale) * (larger * _TWO_M32)) * smaller
                # A zero block must give 0 (not inf * 0); a non-finite input scale must give NaN.
                factor = tl.where(amax > 0.0, factor, 0.0) + (su * 0.0 + sg * 0.0)
            q = (v * factor[:, None]).to(tl.float8e4nv)
            tl.store(y_ptr + (first.to(tl.int64) * I + block * 128) + y_tile, q, mask=live2)
            scales = tl.broadcast_to(scale[:, None], (ROWS, 8))
            tl.store(ys_ptr + scale_at + scale_tile, scales, mask=live2 & writer)
        row_limit = next_limit
        expert = next_expert
