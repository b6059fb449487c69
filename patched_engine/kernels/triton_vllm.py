"""Spec (B) as one Triton kernel: the same arithmetic, step for step, as vLLM's own function.

Bit-equality fixes the order and the roundings of every operation: gate first, the gate's sigmoid
product and the shifted linear half each rounded to the input dtype, their product rounded again.
Source of the spec: vLLM 0.32.0, ``silu_mul_per_token_group_quant_fp8_colmajor``; the code is ours.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

_FP8_MAX = tl.constexpr(448.0)
_FAR = tl.constexpr(2147483647)


@triton.jit
def silu_mul_quant_kernel(
    x_ptr,
    q_ptr,
    s_ptr,
    ends_ptr,
    num_rows,
    num_experts,
    scale_stride,
    eps,
    clamp_limit,
    alpha,
    beta,
    N2: tl.constexpr,
    ROWS: tl.constexpr,
    UE8M0: tl.constexpr,
    HAS_CLAMP: tl.constexpr,
    EXPERTS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """x [M, 2 * N2] bf16 or fp16 (gate, then linear), q [M, N2] e4m3fn, s fp32 at blk*stride + row.

    EXPERTS > 0: ends_ptr holds ``num_experts`` row ends (int32, EXPERTS is the next power of two),
    each expert starting at the previous end rounded up to ALIGNMENT; other rows are not written.
    """
    BLOCKS: tl.constexpr = N2 // 128
    dtype = x_ptr.dtype.element_ty
    if EXPERTS > 0:
        lane = tl.arange(0, EXPERTS)
        ends = tl.load(ends_ptr + lane, mask=lane < num_experts, other=0)
        padded_ends = tl.cdiv(ends, ALIGNMENT) * ALIGNMENT
        groups = tl.cdiv(tl.max(ends, axis=0), ROWS)
    else:
        groups = num_rows // ROWS
    cols = tl.arange(0, 128)
    for item in tl.range(tl.program_id(0), groups * BLOCKS, tl.num_programs(0)):
        block = item % BLOCKS
        first = item // BLOCKS * ROWS
        rows = first + tl.arange(0, ROWS)
        rows64 = rows.to(tl.int64)
        at = rows64[:, None] * (2 * N2) + block * 128 + cols[None, :]
        if EXPERTS > 0:
            # The expert that owns these rows is the first whose padded end lies beyond them.
            end = tl.min(tl.where(padded_ends > first, ends, _FAR), axis=0)
            live = rows < end
            gate = tl.load(x_ptr + at, mask=live[:, None], other=0)
            up = tl.load(x_ptr + at + N2, mask=live[:, None], other=0)
        else:
            gate = tl.load(x_ptr + at)
            up = tl.load(x_ptr + at + N2)
        if HAS_CLAMP:
            gate = tl.minimum(gate.to(tl.float32), clamp_limit).to(dtype)
            up = tl.clamp(up.to(tl.float32), -clamp_limit, clamp_limit).to(dtype)
        gate32 = gate.to(tl.float32)
        glu = (gate32 / (1.0 + tl.exp(-gate32 * alpha))).to(dtype)
        shifted = (up.to(tl.float32) + beta).to(dtype)
        v = (glu * shifted).to(tl.float32)
        amax = tl.maximum(tl.max(tl.abs(v), axis=1), eps)
        scale = amax * (1.0 / _FP8_MAX)
        if UE8M0:
            scale = tl.math.exp2(tl.ceil(tl.log2(scale)))
        codes = tl.clamp(v / scale[:, None], -_FP8_MAX, _FP8_MAX).to(tl.float8e4nv)
        q_at = rows64[:, None] * N2 + block * 128 + cols[None, :]
        s_at = block.to(tl.int64) * scale_stride + rows64
        if EXPERTS > 0:
            tl.store(q_ptr + q_at, codes, mask=live[:, None])
            tl.store(s_ptr + s_at, scale, mask=live)
        else:
            tl.store(q_ptr + q_at, codes)
            tl.store(s_ptr + s_at, scale)
