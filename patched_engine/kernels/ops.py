"""The typed host face of spec (A): torch custom ops that a CUDA graph can capture.

No call synchronises: the row count stays on the card, and the grid follows the host's estimate.
"""

from __future__ import annotations

import torch

from patched_engine.kernels import card
from patched_engine.kernels.checks import check_call
from patched_engine.kernels.plan import plan_launch
from patched_engine.kernels.spec import GROUP, KernelInputError


def _launch(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    y: torch.Tensor,
    ys: torch.Tensor,
    num_ctas: torch.Tensor,
    mn_limit: torch.Tensor,
    total_rows: torch.Tensor,
    tile: int,
    rows_estimate: int,
    expert_of_tile: torch.Tensor | None,
    alpha: torch.Tensor | None,
    beta: torch.Tensor | None,
    limit: torch.Tensor | None,
) -> None:
    controls = {"alpha": alpha, "beta": beta, "limit": limit}
    intermediate = check_call(
        x, xs, y, ys, num_ctas, mn_limit, total_rows, tile, expert_of_tile, controls
    )
    if not x.is_cuda:
        raise KernelInputError(f"x is on {x.device}; the kernel runs on a CUDA device: move it")
    if x.shape[0] == 0:
        return
    from patched_engine.kernels.triton_activation import swiglu_requant_kernel

    index = card.index_of(x)
    overlap = card.can_overlap(index)
    plan = plan_launch(
        rows_estimate, tile, intermediate, card.sm_count(index), x.shape[0],
        fp8_input=xs is not None,
        controls=any(value is not None for value in controls.values()),
    )  # fmt: skip
    # An absent pointer is never read: its flag is a compile-time constant.
    swiglu_requant_kernel[(plan.blocks, plan.programs)](
        x,
        xs if xs is not None else x,
        y,
        ys,
        mn_limit,
        num_ctas,
        total_rows,
        expert_of_tile if expert_of_tile is not None else mn_limit,
        alpha if alpha is not None else ys,
        beta if beta is not None else ys,
        limit if limit is not None else ys,
        mn_limit.numel() - 1,
        plan.walkers,
        I=intermediate,
        TILE=tile,
        ROWS=plan.shape.rows,
        PARTS=plan.shape.parts,
        FP8_IN=xs is not None,
        HAS_ALPHA=alpha is not None,
        HAS_BETA=beta is not None,
        HAS_LIMIT=limit is not None,
        OVERLAP=overlap,
        launch_pdl=overlap,
        num_warps=plan.shape.warps,
        maxnreg=plan.shape.registers,
    )


@torch.library.custom_op("stallscope::swiglu_requant_into", mutates_args=("y", "ys"))
def swiglu_requant_into(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    y: torch.Tensor,
    ys: torch.Tensor,
    num_ctas: torch.Tensor,
    mn_limit: torch.Tensor,
    total_rows: torch.Tensor,
    tile: int,
    rows_estimate: int,
    expert_of_tile: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    limit: torch.Tensor | None = None,
) -> None:
    """SwiGLU and re-quantization of the valid rows of ``x`` into ``y`` and ``ys``, in place.

    x: e4m3fn or bf16 [P_max, 2I], columns 0..I-1 linear, I..2I-1 gate; rows grouped per local
      expert, each expert padded to ``tile`` rows (a multiple of 8, 8 to 128).
    xs: fp32, at least 2I/128 * P_max elements, scale of (block, row) at block * P + row where
      P = ``total_rows``; None with bf16 input.
    y: e4m3fn [P_max, I]; ys: fp32, at least I/128 * P_max elements, laid out like xs.
    num_ctas, total_rows: int32 [1] on the card. mn_limit: int32, one a tile: tile c's valid rows
      are [c * tile, mn_limit[c]).
    rows_estimate: the host's guess of the valid rows; any value is correct, a good one is fast.
    expert_of_tile: int32, the local expert of each tile; alpha, beta, limit: fp32 per local
      expert, each optional (the OAI variant).
    Padding rows of y and ys are never written. Raises KernelInputError on anything else.
    """
    _launch(
        x, xs, y, ys, num_ctas, mn_limit, total_rows, tile, rows_estimate,
        expert_of_tile, alpha, beta, limit,
    )  # fmt: skip


@swiglu_requant_into.register_fake
def _fake_into(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    y: torch.Tensor,
    ys: torch.Tensor,
    num_ctas: torch.Tensor,
    mn_limit: torch.Tensor,
    total_rows: torch.Tensor,
    tile: int,
    rows_estimate: int,
    expert_of_tile: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    limit: torch.Tensor | None = None,
) -> None:
    return None


@torch.library.custom_op("stallscope::swiglu_requant", mutates_args=())
def swiglu_requant(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    num_ctas: torch.Tensor,
    mn_limit: torch.Tensor,
    total_rows: torch.Tensor,
    tile: int,
    rows_estimate: int,
    expert_of_tile: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    limit: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``swiglu_requant_into`` with new outputs: y e4m3fn [P_max, I], ys fp32 [I/128 * P_max].

    What padding rows of either hold is unspecified. Raises KernelInputError.
    """
    y, ys = _outputs(x)
    _launch(
        x, xs, y, ys, num_ctas, mn_limit, total_rows, tile, rows_estimate,
        expert_of_tile, alpha, beta, limit,
    )  # fmt: skip
    return y, ys


def _outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() != 2:
        raise KernelInputError(f"x has {x.dim()} dimensions; it must be [rows, 2 * I]")
    intermediate = x.shape[1] // 2
    y = torch.empty((x.shape[0], intermediate), dtype=torch.float8_e4m3fn, device=x.device)
    groups = intermediate // GROUP
    return y, torch.empty((groups * x.shape[0],), dtype=torch.float32, device=x.device)


@swiglu_requant.register_fake
def _fake(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    num_ctas: torch.Tensor,
    mn_limit: torch.Tensor,
    total_rows: torch.Tensor,
    tile: int,
    rows_estimate: int,
    expert_of_tile: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    limit: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _outputs(x)
