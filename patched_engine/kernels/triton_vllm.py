"""Spec (B) as one Triton kernel: the same arithmetic, step for step, as vLLM's own function.

Bit-equality fixes the order and the roundings of every operation: gate first, the gate's sigmoid
product and the shifted linear half each rounded to the input dtype, their product rounded again.
Source of the spec: vLLM 0.32.0, ``silu_mul_per_token_group_quant_fp8_colmajor``; the code is ours.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

_FP8_MAX = tl.constexpr(448.0)
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp2(x):
    """2^x with subnormal results flushed: beside the 1 it is added to they leave no trace."""
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _rcp(x):
    """What Triton's own division multiplies by, wherever x is a normal number below 2^126."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _quantize(
    gate, up, eps, clamp_limit, alpha, beta,
    UE8M0: tl.constexpr, HAS_CLAMP: tl.constexpr, PLAIN_SCALE: tl.constexpr,
):  # fmt: skip
    """[ROWS, 128] of each half -> e4m3 codes [ROWS, 128] and fp32 scales [ROWS]."""
    dtype: tl.constexpr = gate.dtype
    if HAS_CLAMP:
        gate = tl.minimum(gate.to(tl.float32), clamp_limit).to(dtype)
        up = tl.clamp(up.to(tl.float32), -clamp_limit, clamp_limit).to(dtype)
    gate32 = gate.to(tl.float32)
    glu = (gate32 / (1.0 + _exp2(-gate32 * alpha * _LOG2E))).to(dtype)
    shifted = (up.to(tl.float32) + beta).to(dtype)
    v = (glu * shifted).to(tl.float32)
    amax = tl.maximum(tl.max(tl.abs(v), axis=1), eps)
    scale = amax * (1.0 / _FP8_MAX)
    if UE8M0:
        scale = tl.math.exp2(tl.ceil(tl.log2(scale)))
    if PLAIN_SCALE:  # noqa: SIM108 - Triton compiles one branch of a constexpr if
        ratio = v * _rcp(scale)[:, None]
    else:
        ratio = v / scale[:, None]
    return tl.clamp(ratio, -_FP8_MAX, _FP8_MAX).to(tl.float8e4nv), scale


@triton.jit
def silu_mul_quant_once_kernel(
    x_ptr,
    q_ptr,
    s_ptr,
    scale_stride,
    eps,
    clamp_limit,
    alpha,
    beta,
    N2: tl.constexpr,
    ROWS: tl.constexpr,
    UE8M0: tl.constexpr,
    HAS_CLAMP: tl.constexpr,
    PLAIN_SCALE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One item a program: the grid is row groups by column blocks. Operands as below.

    At 128 rows the launch is most of the time, so this one takes no argument that it does not read
    (clamp_limit is None without a clamp) and has no loop. OVERLAP: launched while the kernel before
    still ends (programmatic dependent launch), so it waits for that one before it reads or writes.
    """
    row = tl.arange(0, ROWS)
    col = tl.arange(0, 128)
    block = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    x_at = x_ptr + (first.to(tl.int64) * (2 * N2) + block * 128)
    x_tile = row[:, None] * (2 * N2) + col[None, :]
    if OVERLAP:
        gdc_wait()
    gate = tl.load(x_at + x_tile)
    up = tl.load(x_at + N2 + x_tile)
    codes, scale = _quantize(gate, up, eps, clamp_limit, alpha, beta, UE8M0, HAS_CLAMP, PLAIN_SCALE)
    q_tile = row[:, None] * N2 + col[None, :]
    tl.store(q_ptr + (first.to(tl.int64) * N2 + block * 128) + q_tile, codes)
    tl.store(s_ptr + (block.to(tl.int64) * scale_stride + first) + row, scale)


@triton.jit
def silu_mul_quant_kernel(
    x_ptr,
    q_ptr,
    s_ptr,
    ends_ptr,
    num_rows,
    scale_stride,
    eps,
    clamp_limit,
    alpha,
    beta,
    N2: tl.constexpr,
    ROWS: tl.constexpr,
    UE8M0: tl.constexpr,
    HAS_CLAMP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    PLAIN_SCALE: tl.constexpr,
    LANES: tl.constexpr,
):
    """x [M, 2 * N2] bf16 or fp16 (gate, then linear), q [M, N2] e4m3fn, s fp32 at blk*stride + row.

    ALIGNMENT > 0: ends_ptr holds each expert's row end (int32; the grid's second axis), the expert
    starting at the previous end rounded up to ALIGNMENT; other rows are not written.
    PLAIN_SCALE: every scale is a normal number, so one reciprocal a row divides as exactly.
    """
    BLOCKS: tl.constexpr = N2 // 128
    row = tl.arange(0, ROWS)
    col = tl.arange(0, 128)
    x_tile = row[:, None] * (2 * N2) + col[None, :]
    q_tile = row[:, None] * N2 + col[None, :]
    item = tl.program_id(0)
    step = tl.num_programs(0)
    start = 0
    if ALIGNMENT > 0:
        # The second grid axis is the expert: two loads say where its rows begin and end.
        expert = tl.program_id(1)
        before = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
        end = tl.load(ends_ptr + expert)
        start = tl.cdiv(before, ALIGNMENT) * ALIGNMENT
    else:
        end = num_rows
    # One of the eight or sixteen lanes that share a row writes its scale from its register; the
    # detour hides from Triton a run of addresses that would send it through shared memory.
    lane = tl.arange(0, LANES)
    writer = (lane == 0)[None, :]
    s_tile = (row * 3 // 3)[:, None] + lane[None, :]
    total = tl.cdiv(tl.maximum(end - start, 0), ROWS) * BLOCKS
    for trip in tl.range(0, tl.cdiv(tl.maximum(total - item, 0), step)):
        at = item + trip * step
        block = at % BLOCKS
        first = start + at // BLOCKS * ROWS
        x_at = x_ptr + (first.to(tl.int64) * (2 * N2) + block * 128)
        if ALIGNMENT > 0:
            live = row < end - first
            gate = tl.load(x_at + x_tile, mask=live[:, None], other=0)
            up = tl.load(x_at + N2 + x_tile, mask=live[:, None], other=0)
        else:
            gate = tl.load(x_at + x_tile)
            up = tl.load(x_at + N2 + x_tile)
        codes, scale = _quantize(
            gate, up, eps, clamp_limit, alpha, beta, UE8M0, HAS_CLAMP, PLAIN_SCALE
        )
        q_at = q_ptr + (first.to(tl.int64) * N2 + block * 128)
        s_at = s_ptr + (block.to(tl.int64) * scale_stride + first)
        scales = tl.broadcast_to(scale[:, None], (ROWS, LANES))
        if ALIGNMENT > 0:
            tl.store(q_at + q_tile, codes, mask=live[:, None])
            tl.store(s_at + s_tile, scales, mask=live[:, None] & writer)
        else:
            tl.store(q_at + q_tile, codes)
            tl.store(s_at + s_tile, scales, mask=writer)
