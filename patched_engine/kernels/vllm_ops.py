"""The typed host face of spec (B): vLLM's signature, layout and refusals, our kernel underneath."""

from __future__ import annotations

import math

import torch

from patched_engine.kernels import card
from patched_engine.kernels.spec import GROUP, ROW_ALIGN, KernelInputError

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16)
MAX_EXPERTS = 1024
VECTOR_BYTES = 16
ROWS = 8
# Below it a scale could be subnormal, where one reciprocal a row is no longer an exact stand-in.
LEAST_PLAIN_EPS = 1e-30
# The grid grows with the square root of the work, as in plan.py; the rest comes by a loop.
CTAS_PER_SM_PER_ROOT_ITEM = 0.5
MIN_CTAS_PER_SM = 32
MAX_CTAS_PER_SM = 128
WARPS = 4
# Calls this small wait for memory rather than stream it: twice the warps ask for it sooner.
WIDE_WARPS, WIDE_ITEMS = 8, range(257, 1025)


def plan_colmajor(rows: int, intermediate: int, experts: int, sm_count: int) -> int:
    """CTAs an expert for ``rows`` x ``intermediate`` outputs over ``experts``."""
    items = rows // ROWS * (intermediate // GROUP)
    per_sm = CTAS_PER_SM_PER_ROOT_ITEM * math.sqrt(items)
    bounded = min(max(per_sm, MIN_CTAS_PER_SM), MAX_CTAS_PER_SM)
    return max(1, min(-(-items // experts), int(sm_count * bounded) // experts))


def unsupported_reason(  # noqa: PLR0912 - one line a rule
    x: torch.Tensor,
    output: torch.Tensor | None,
    group_size: int,
    expert_ends: torch.Tensor | None,
    expert_alignment: int,
) -> str | None:
    """Why this call must stay with vLLM's own function: a short fixed word, or None.

    Only what vLLM's function itself accepts is judged; its assertions stay its own to raise.
    """
    if group_size != GROUP:
        return "group_size"
    if not x.is_cuda:
        return "device"
    if x.dtype not in SUPPORTED_DTYPES:
        return "input_dtype"
    rows, columns = (x.shape[0], x.shape[1]) if x.dim() == 2 else (0, 0)
    if rows == 0 or rows % GROUP or columns == 0 or columns % (2 * GROUP):
        return "shape"
    if rows * columns // (ROW_ALIGN * 2 * GROUP) >= 2**31:
        return "too_many_items"
    if not x.is_contiguous() or x.data_ptr() % VECTOR_BYTES:
        return "input_layout"
    if output is not None:
        if output.dtype != torch.float8_e4m3fn or output.device != x.device:
            return "output_dtype"
        if tuple(output.shape) != (rows, columns // 2):
            return "output_shape"
        if not output.is_contiguous() or output.data_ptr() % VECTOR_BYTES:
            return "output_layout"
    if expert_ends is None:
        return "expert_alignment" if expert_alignment else None
    if expert_ends.dim() != 1 or not 0 < expert_ends.numel() <= MAX_EXPERTS:
        return "expert_count"
    if expert_ends.dtype != torch.int32 or not expert_ends.is_contiguous():
        return "expert_ends"
    if expert_ends.device != x.device:
        return "expert_ends"
    if expert_alignment <= 0 or expert_alignment % ROW_ALIGN:
        return "expert_alignment"
    return None


def silu_mul_quant_colmajor(
    x: torch.Tensor,
    output: torch.Tensor | None = None,
    *,
    use_ue8m0: bool,
    eps: float = 1e-10,
    clamp_limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    expert_ends: torch.Tensor | None = None,
    expert_alignment: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate-first gated activation and FP8 quantization per row and 128 outputs, bit-equal to vLLM.

    x: bf16 or fp16 [M, 2 * I], gate in columns 0..I-1; M a multiple of 128, I of 128.
    output: e4m3fn [M, I], made when None. expert_ends: int32 [experts], the row after each
      expert's last; the next starts at it rounded up to ``expert_alignment`` rows (of 8).
    Returns (output, scales): scales fp32 [M, I/128] with stride (1, M).
    Raises KernelInputError for what the kernel cannot take. Source: vLLM 0.32.0, spec (B).
    """
    reason = unsupported_reason(x, output, GROUP, expert_ends, expert_alignment)
    if reason is not None:
        raise KernelInputError(
            f"silu_mul_quant_colmajor cannot take this call ({reason}): x is {x.dtype} "
            f"{tuple(x.shape)} on {x.device}; pass contiguous bf16 or fp16 [M, 2I] on a CUDA "
            f"device with M and I multiples of {GROUP}"
        )
    return launch(
        x, output, use_ue8m0, eps, clamp_limit, alpha, beta, expert_ends, expert_alignment
    )


def launch(
    x: torch.Tensor,
    output: torch.Tensor | None,
    use_ue8m0: bool,
    eps: float,
    clamp_limit: float | None,
    alpha: float,
    beta: float,
    expert_ends: torch.Tensor | None,
    expert_alignment: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``silu_mul_quant_colmajor`` without its checks, for a caller that has made them."""
    from patched_engine.kernels import triton_vllm

    rows, intermediate = x.shape[0], x.shape[1] // 2
    if output is None:
        output = torch.empty((rows, intermediate), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((intermediate // GROUP, rows), dtype=torch.float32, device=x.device)
    index = card.index_of(x)
    experts = expert_ends.numel() if expert_ends is not None else 1
    grid = plan_colmajor(rows, intermediate, experts, card.sm_count(index))
    groups, blocks = rows // ROWS, intermediate // GROUP
    options = {
        "N2": intermediate,
        "ROWS": ROWS,
        "UE8M0": use_ue8m0,
        "HAS_CLAMP": clamp_limit is not None,
        "PLAIN_SCALE": eps >= LEAST_PLAIN_EPS,
    }
    if expert_ends is None and grid == groups * blocks:
        warps = WIDE_WARPS if groups * blocks in WIDE_ITEMS else WARPS
        overlap = card.can_overlap(index)
        triton_vllm.silu_mul_quant_once_kernel[(groups, blocks)](
            x, output, scales, rows, eps, clamp_limit, alpha, beta, **options,
            OVERLAP=overlap, launch_pdl=overlap, num_warps=warps,
        )  # fmt: skip
    else:
        triton_vllm.silu_mul_quant_kernel[(grid, experts)](
            x, output, scales, expert_ends, rows, rows, eps, clamp_limit, alpha, beta, **options,
            ALIGNMENT=expert_alignment, LANES=4 * WARPS, num_warps=WARPS,
        )  # fmt: skip
    return output, scales.transpose(0, 1)


@torch.library.custom_op("stallscope::silu_mul_quant_colmajor", mutates_args=("output",))
def silu_mul_quant_colmajor_op(
    x: torch.Tensor,
    output: torch.Tensor,
    use_ue8m0: bool,
    eps: float = 1e-10,
    clamp_limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    expert_ends: torch.Tensor | None = None,
    expert_alignment: int = 0,
) -> torch.Tensor:
    """The same as a torch op: fills ``output`` e4m3fn [M, I], returns scales fp32 [I/128, M]."""
    _, scales = silu_mul_quant_colmajor(
        x,
        output,
        use_ue8m0=use_ue8m0,
        eps=eps,
        clamp_limit=clamp_limit,
        alpha=alpha,
        beta=beta,
        expert_ends=expert_ends,
        expert_alignment=expert_alignment,
    )
    return scales.transpose(0, 1)


@silu_mul_quant_colmajor_op.register_fake
def _fake(
    x: torch.Tensor,
    output: torch.Tensor,
    use_ue8m0: bool,
    eps: float = 1e-10,
    clamp_limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    expert_ends: torch.Tensor | None = None,
    expert_alignment: int = 0,
) -> torch.Tensor:
    groups = x.shape[1] // (2 * GROUP)
    return torch.empty((groups, x.shape[0]), dtype=torch.float32, device=x.device)
