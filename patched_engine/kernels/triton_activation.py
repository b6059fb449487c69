"""Spec (A) as one Triton kernel: SwiGLU and FP8 re-quantization over the compact expert rows.

Source of the spec: FlashInfer's DeepSeek activation (PR #3969 for the compact rows, #4405 for the
OAI controls); the code is our own.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

# A constexpr is the only global that a jitted function may read.
_NEG_LOG2E = tl.constexpr(-1.4426950408889634)
_MIN_SCALE = tl.constexpr(1.1754943508222875e-38)  # 2^-126
_INV_448 = tl.constexpr(1.0 / 448.0)
# exp(-g) is carried as 2^-32 of itself, so that it stays finite down to g = -109 (fp32 alone
# overflows at -88 and a flushed reciprocal at -87).
_SHIFT = tl.constexpr(32.0)
_TWO_M32 = tl.constexpr(2.0**-32)

# FP8 rows are handled as words of four codes, each in one block of PTX: Triton's own conversions
# hold all sixteen elements of a thread at once and need 43 registers, the words need 32.
_UNPACK_PTX = "".join(
    f"mov.b32 {{a, b}}, ${source}; cvt.rn.f16x2.e4m3x2 h, a; cvt.rn.f16x2.e4m3x2 k, b;"
    "mov.b32 {p, q}, h; mov.b32 {r, s}, k;"
    + "".join(f"cvt.f32.f16 {name}{i}, {half};" for i, half in enumerate("pqrs"))
    for name, source in (("u", 5), ("g", 6))
)
_SIGMOID_PTX = (  # e = 1 / (2^-32 + 2^(e - 32)); 0fC2000000 is -32, 0f2F800000 is 2^-32
    "ex2.approx.ftz.f32 e{i}, e{i}; add.f32 e{i}, e{i}, 0f2F800000;rcp.approx.ftz.f32 e{i}, e{i};"
)
_PLAIN_PTX = (
    "fma.rn.f32 e{i}, g{i}, $7, 0fC2000000;"
    + _SIGMOID_PTX
    + "mul.f32 u{i}, u{i}, g{i}; mul.f32 ${i}, u{i}, e{i};"
)
_SCALED_PTX = "mul.f32 g{i}, g{i}, $8; fma.rn.f32 u{i}, u{i}, $7, $10;"
# min and max keep the number beside a NaN: a NaN becomes the limit.
_CLAMP_PTX = "min.f32 g{i}, g{i}, $13; min.f32 u{i}, u{i}, $12; max.f32 u{i}, u{i}, $11;"
_SHIFTED_PTX = (
    "fma.rn.f32 e{i}, g{i}, $9, 0fC2000000;"
    + _SIGMOID_PTX
    + "mul.f32 g{i}, g{i}, e{i}; mul.f32 ${i}, u{i}, g{i};"
)


def _word_ptx(element: str) -> tl.constexpr:
    """PTX for the four elements of a word ($5 linear, $6 gate) -> $0..$3 and their maximum $4."""
    registers = ", ".join(f"{name}{i}" for name in "uge" for i in range(4))
    magnitudes = "".join(f"abs.f32 e{i}, ${i};" for i in range(4))
    return tl.constexpr(
        "{.reg .b16 a, b, p, q, r, s; .reg .b32 h, k; .reg .f32 " + registers + ";" + _UNPACK_PTX
        + "".join(element.format(i=i) for i in range(4)) + magnitudes
        + "max.f32 e0, e0, e1; max.f32 e0, e0, e2; max.f32 $4, e0, e3;}"
    )  # fmt: skip


_PLAIN_WORD = _word_ptx(_PLAIN_PTX)
_SHIFTED_WORD = _word_ptx(_SCALED_PTX + _SHIFTED_PTX)
_CLAMPED_WORD = _word_ptx(_SCALED_PTX + _CLAMP_PTX + _SHIFTED_PTX)


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
def _pack(a, b, c, d):
    """Four floats -> a word of four e4m3 codes, round to nearest even, saturating."""
    return tl.inline_asm_elementwise(
        "{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, $2, $1;"
        "cvt.rn.satfinite.e4m3x2.f32 h, $4, $3; mov.b32 $0, {l, h};}",
        "=r,f,f,f,f", [a, b, c, d], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _plain_rows(linear, gate, su, sg):
    """e4m3 words [ROWS, 32] and their scales [ROWS] -> code words, scales out."""
    # v carries 2^32 and neither input scale: they are per row, so they join afterwards.
    v0, v1, v2, v3, largest = tl.inline_asm_elementwise(
        _PLAIN_WORD, "=&f,=&f,=&f,=&f,=&f,r,r,f", [linear, gate, (sg * _NEG_LOG2E)[:, None]],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip
    amax = tl.max(largest, axis=1)
    # The larger scale meets the constants and the smaller one the maximum, so that no
    # intermediate leaves fp32's range unless the result does.
    linear_larger = tl.abs(su) >= tl.abs(sg)
    larger = tl.where(linear_larger, su, sg)
    smaller = tl.where(linear_larger, sg, su)
    max_over_448 = (amax * tl.abs(smaller)) * (tl.abs(larger) * (_TWO_M32 * _INV_448))
    scale = tl.maximum(max_over_448, _MIN_SCALE)
    factor = (_rcp(scale) * (larger * _TWO_M32)) * smaller
    # A zero block must give 0 (not inf * 0); a non-finite input scale must give NaN.
    factor = (tl.where(amax > 0.0, factor, 0.0) + (su * 0.0 + sg * 0.0))[:, None]
    return _pack(v0 * factor, v1 * factor, v2 * factor, v3 * factor), scale


@triton.jit
def _controlled_rows(linear, gate, su, sg, slope, beta, bound, HAS_LIMIT: tl.constexpr):
    """The same with the OAI controls; ``slope`` is alpha times -log2(e).

    The linear half carries 2^-32, against the sigmoid's 2^32; its clamp follows the addition of
    beta, so that scale and beta are one fused multiply-add.
    """
    v0, v1, v2, v3, largest = tl.inline_asm_elementwise(
        _CLAMPED_WORD if HAS_LIMIT else _SHIFTED_WORD, "=&f,=&f,=&f,=&f,=&f,r,r,f,f,f,f,f,f,f",
        [linear, gate, (su * _TWO_M32)[:, None], sg[:, None], slope, beta * _TWO_M32,
         (beta - bound) * _TWO_M32, (beta + bound) * _TWO_M32, bound],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip
    scale = tl.maximum(tl.max(largest, axis=1) * _INV_448, _MIN_SCALE)
    factor = _rcp(scale)[:, None]
    return _pack(v0 * factor, v1 * factor, v2 * factor, v3 * factor), scale


@triton.jit
def _bf16_rows(u, g, slope, beta, bound, HAS_BETA: tl.constexpr, HAS_LIMIT: tl.constexpr):
    """bf16 [ROWS, 128] -> e4m3 codes and scales; the controls as above."""
    u = u.to(tl.float32) * _TWO_M32
    g = g.to(tl.float32)
    if HAS_LIMIT:
        g = tl.minimum(g, bound)
        bound = bound * _TWO_M32
        u = tl.maximum(tl.minimum(u, bound), -bound)
    if HAS_BETA:
        u = u + beta * _TWO_M32
    v = (g * _rcp(_TWO_M32 + _exp2(g * slope - _SHIFT))) * u
    scale = tl.maximum(tl.max(tl.abs(v), axis=1) * _INV_448, _MIN_SCALE)
    return (v * _rcp(scale)[:, None]).to(tl.float8e4nv), scale


@triton.jit(do_not_specialize=["last_tile", "walkers"])
def swiglu_requant_kernel(  # noqa: PLR0912 - a compile-time branch an option
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
    walkers,
    I: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    FP8_IN: tl.constexpr,
    HAS_ALPHA: tl.constexpr,
    HAS_BETA: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The grid is column blocks of 128 by programs; a program handles spans of ROWS * PARTS rows.

    x [P, 2I] e4m3fn or bf16, xs fp32 at blk*P + row, y [P, I] e4m3fn, ys fp32 at blk*P + row.
    ``last_tile``: the last index that may be read from mn_limit, whatever num_ctas says.
    ``walkers``: so many programs of a column walk over the spans; each later one takes one span
    only. They start as walkers end, so that an early multiprocessor takes more of them.
    OVERLAP: launched while the kernel before still ends (programmatic dependent launch), so it
    waits for that one before it reads or writes.
    """
    BLOCKS: tl.constexpr = I // 128
    SPAN: tl.constexpr = ROWS * PARTS
    SPANS: tl.constexpr = TILE // SPAN
    CONTROLS: tl.constexpr = HAS_ALPHA or HAS_BETA or HAS_LIMIT
    block = tl.program_id(0)
    program = tl.program_id(1)
    programs = tl.num_programs(1)
    singles = tl.maximum(programs - walkers, 0)
    walks = program < walkers
    first_span = tl.where(walks, singles + program, program - walkers)
    step = tl.where(walks, tl.minimum(programs, walkers), 1 << 24)
    if OVERLAP:
        gdc_wait()
    total = tl.load(num_ctas_ptr) * SPANS
    scale_stride = tl.load(total_rows_ptr)
    row_limit = tl.load(mn_limit_ptr + tl.minimum(first_span // SPANS, last_tile))
    # Neither is negative: the test makes the compiler ask for all three numbers at once, before it
    # may leave, and so they cost one trip to memory.
    total = tl.where((row_limit < 0) | (scale_stride < 0), 0, total)
    # What does not change from span to span, so that a span only adds scalars.
    row = tl.arange(0, ROWS)
    # A row's scale sits in all eight lanes that share the row, so one of them can write it from its
    # register. Triton lays a store out along its longest run of addresses, and taking the rows for
    # a run costs a trip through shared memory and two barriers: row * 3 // 3 hides that run.
    lane = tl.arange(0, 8)
    writer = (lane == 0)[None, :]
    scale_tile = (row * 3 // 3)[:, None] + lane[None, :]
    if FP8_IN:
        word = tl.arange(0, 32)
        x_tile = row[:, None] * (I // 2) + word[None, :]
        y_tile = row[:, None] * (I // 4) + word[None, :]
        x_words = x_ptr.to(tl.pointer_type(tl.int32))
        y_words = y_ptr.to(tl.pointer_type(tl.int32))
    else:
        col = tl.arange(0, 128)
        x_tile = row[:, None] * (2 * I) + col[None, :]
        y_tile = row[:, None] * I + col[None, :]
    expert = 0
    if CONTROLS:
        expert = tl.load(expert_ptr + tl.minimum(first_span // SPANS, last_tile))
    for span in tl.range(first_span, total, step):
        next_tile = tl.minimum((span + step) // SPANS, last_tile)
        next_limit = tl.load(mn_limit_ptr + next_tile)
        next_expert = 0
        if CONTROLS:
            next_expert = tl.load(expert_ptr + next_tile)
        first = span * SPAN
        if first < row_limit:
            slope = _NEG_LOG2E
            beta = 0.0
            bound = 0.0
            scale_at = block.to(tl.int64) * scale_stride + first
            live = row < row_limit - first
            if FP8_IN:
                x_at = x_words + (first.to(tl.int64) * (I // 2) + block * 32)
                y_at = y_words + (first.to(tl.int64) * (I // 4) + block * 32)
                xs_at = xs_ptr + scale_at
                gate_scales = BLOCKS * scale_stride.to(tl.int64)
                u = tl.load(x_at + x_tile, mask=live[:, None], other=0)
                g = tl.load(x_at + I // 4 + x_tile, mask=live[:, None], other=0)
                su = tl.load(xs_at + row, mask=live, other=0.0)
                sg = tl.load(xs_at + gate_scales + row, mask=live, other=0.0)
                if PARTS == 2:
                    live2 = row < row_limit - first - ROWS
                    x_at2 = x_at + ROWS * (I // 2)
                    u2 = tl.load(x_at2 + x_tile, mask=live2[:, None], other=0)
                    g2 = tl.load(x_at2 + I // 4 + x_tile, mask=live2[:, None], other=0)
                    su2 = tl.load(xs_at + ROWS + row, mask=live2, other=0.0)
                    sg2 = tl.load(xs_at + ROWS + gate_scales + row, mask=live2, other=0.0)
            else:
                x_at = x_ptr + (first.to(tl.int64) * (2 * I) + block * 128)
                y_at = y_ptr + (first.to(tl.int64) * I + block * 128)
                u = tl.load(x_at + x_tile, mask=live[:, None], other=0.0)
                g = tl.load(x_at + I + x_tile, mask=live[:, None], other=0.0)
            if HAS_ALPHA:
                slope = tl.load(alpha_ptr + expert) * _NEG_LOG2E
            if HAS_BETA:
                beta = tl.load(beta_ptr + expert)
            if HAS_LIMIT:
                bound = tl.load(limit_ptr + expert)
            if not FP8_IN:
                codes, scale = _bf16_rows(u, g, slope, beta, bound, HAS_BETA, HAS_LIMIT)
            elif CONTROLS:
                codes, scale = _controlled_rows(u, g, su, sg, slope, beta, bound, HAS_LIMIT)
            else:
                codes, scale = _plain_rows(u, g, su, sg)
            tl.store(y_at + y_tile, codes, mask=live[:, None])
            scales = tl.broadcast_to(scale[:, None], (ROWS, 8))
            tl.store(ys_ptr + scale_at + scale_tile, scales, mask=live[:, None] & writer)
            if PARTS == 2:
                if CONTROLS:
                    codes, scale = _controlled_rows(u2, g2, su2, sg2, slope, beta, bound, HAS_LIMIT)
                else:
                    codes, scale = _plain_rows(u2, g2, su2, sg2)
                tl.store(y_at + ROWS * (I // 4) + y_tile, codes, mask=live2[:, None])
                scales = tl.broadcast_to(scale[:, None], (ROWS, 8))
                scale_at2 = scale_at + ROWS
                tl.store(ys_ptr + scale_at2 + scale_tile, scales, mask=live2[:, None] & writer)
        row_limit = next_limit
        expert = next_expert
