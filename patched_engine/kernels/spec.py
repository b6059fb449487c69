"""The numbers and shape rules of the two activation specs, for kernels, references and callers.

Spec (A): FlashInfer's DeepSeek block-scaled activation over rows grouped per local expert.
Spec (B): vLLM's ``silu_mul_per_token_group_quant_fp8_colmajor``.
"""

from __future__ import annotations

GROUP = 128
"""Outputs that share one scale."""

E4M3_MAX = 448.0
"""The largest finite e4m3fn value."""

MIN_SCALE = 2.0**-126
"""Spec (A)'s smallest scale: the least normal fp32, so that a zero block divides cleanly."""

ROW_ALIGN = 8
"""Rows that one thread block reads together at least; every expert's rows are padded to it."""

MIN_TILE = 8
MAX_TILE = 128


class KernelInputError(ValueError):
    """An argument that no kernel here can take: says what it is, what it may be, and the mend."""


def check_tile(tile: int) -> None:
    """Raise KernelInputError unless ``tile`` (rows an expert is padded to) is supported."""
    if not MIN_TILE <= tile <= MAX_TILE or tile % ROW_ALIGN:
        raise KernelInputError(
            f"tile is {tile} rows; it must be a multiple of {ROW_ALIGN} from {MIN_TILE} to "
            f"{MAX_TILE}: pass the tile that the expert GEMM padded its rows to"
        )


def check_intermediate(intermediate: int) -> None:
    """Raise KernelInputError unless ``intermediate`` (output columns, I) is supported."""
    if intermediate < GROUP or intermediate % GROUP:
        raise KernelInputError(
            f"the intermediate size is {intermediate} columns; it must be a positive multiple of "
            f"{GROUP}: pad the expert's gate and up projections to one"
        )


def bytes_per_valid_row(intermediate: int, input_bytes_per_element: int = 1) -> int:
    """Bytes that one valid row must move: both halves in, the codes out, and their scales.

    6336 at I = 2048 with FP8 input; 10304 with BF16 input, which carries no input scales.
    """
    check_intermediate(intermediate)
    groups = intermediate // GROUP
    input_scale_bytes = 2 * groups * 4 if input_bytes_per_element == 1 else 0
    return (
        2 * intermediate * input_bytes_per_element + intermediate + input_scale_bytes + groups * 4
    )
