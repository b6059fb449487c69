"""Refuse tensors that the kernels cannot take, in one clear line, before anything is launched."""

from __future__ import annotations

import torch

from patched_engine.kernels.spec import GROUP, KernelInputError, check_intermediate, check_tile

VECTOR_BYTES = 16
INPUT_DTYPES = (torch.float8_e4m3fn, torch.bfloat16)


def _need(
    tensor: torch.Tensor, name: str, dtype: torch.dtype, least: int, device: torch.device
) -> None:
    if tensor.dtype != dtype:
        raise KernelInputError(f"{name} is {tensor.dtype}; it must be {dtype}: convert it first")
    if tensor.device != device:
        raise KernelInputError(f"{name} is on {tensor.device} but x is on {device}: move it there")
    if not tensor.is_contiguous():
        raise KernelInputError(f"{name} has strides {tensor.stride()}: pass a contiguous tensor")
    if tensor.numel() < least:
        raise KernelInputError(
            f"{name} holds {tensor.numel()} elements; at least {least} are needed: "
            "allocate it for the padded row capacity"
        )


def check_call(
    x: torch.Tensor,
    xs: torch.Tensor | None,
    y: torch.Tensor,
    ys: torch.Tensor,
    num_ctas: torch.Tensor,
    mn_limit: torch.Tensor,
    total_rows: torch.Tensor,
    tile: int,
    expert_of_tile: torch.Tensor | None,
    controls: dict[str, torch.Tensor | None],
) -> int:
    """Check one call of spec (A) and return the intermediate size I.

    Shapes and dtypes as in ``ops.swiglu_requant``. Raises KernelInputError.
    """
    check_tile(tile)
    if x.dtype not in INPUT_DTYPES:
        raise KernelInputError(
            f"x is {x.dtype}; it must be torch.float8_e4m3fn or torch.bfloat16: quantize or cast it"
        )
    if x.dim() != 2 or x.shape[1] % 2:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)}; it must be [rows, 2 * I]: pass the first GEMM's output"
        )
    capacity, intermediate = x.shape[0], x.shape[1] // 2
    check_intermediate(intermediate)
    groups = intermediate // GROUP
    _need(x, "x", x.dtype, 0, x.device)
    if x.dtype == torch.float8_e4m3fn:
        if xs is None:
            raise KernelInputError("xs is missing: FP8 input needs its scales, fp32 [2I/128, P]")
        _need(xs, "xs", torch.float32, 2 * groups * capacity, x.device)
    elif xs is not None:
        raise KernelInputError("xs was given with bf16 input, which has no scales: pass None")
    _need(y, "y", torch.float8_e4m3fn, capacity * intermediate, x.device)
    _need(ys, "ys", torch.float32, groups * capacity, x.device)
    _need(num_ctas, "num_ctas", torch.int32, 1, x.device)
    _need(total_rows, "total_rows", torch.int32, 1, x.device)
    _need(mn_limit, "mn_limit", torch.int32, 1, x.device)
    given = [name for name, control in controls.items() if control is not None]
    for name in given:
        control = controls[name]
        assert control is not None
        _need(control, name, torch.float32, 1, x.device)
    if given:
        if expert_of_tile is None:
            raise KernelInputError(
                f"{given[0]} was given without expert_of_tile: pass each tile's local expert, int32"
            )
        _need(expert_of_tile, "expert_of_tile", torch.int32, 1, x.device)
    for name, tensor in (("x", x), ("y", y)):
        if tensor.data_ptr() % VECTOR_BYTES:
            raise KernelInputError(
                f"{name} starts at an address that is no multiple of {VECTOR_BYTES} bytes: "
                "pass a tensor that starts its own allocation"
            )
    return intermediate
