"""The activation's share of one expert layer: two grouped FP8 GEMMs of torch's with it between.

EP8 shapes: 8192 tokens, 9315 rows on 32 local experts, I = 2048; the hidden size is 7168. torch's
grouped GEMM writes bf16, so the activation reads FP8 buffers of its own: only times are compared.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.kernels import contenders, rivals
from benchmarks.kernels.problems import Buffers, make_buffers, make_counts, make_routing
from benchmarks.kernels.timing import graph_seconds

HIDDEN, INTERMEDIATE, TILE = 7168, 2048, 64
FP8 = torch.float8_e4m3fn


def _grouped(rows: int, inner: int, outer: int, ends: torch.Tensor) -> Callable[[], None]:
    """A grouped GEMM [rows, inner] x [experts, inner, outer] of random FP8, rowwise scales."""
    experts = ends.numel()
    left = torch.randn((rows, inner), device="cuda").to(FP8)
    right = torch.empty((experts, outer, inner), dtype=FP8, device="cuda")
    for expert in range(experts):
        right[expert] = torch.randn((outer, inner), device="cuda").to(FP8)
    left_scale = torch.rand(rows, device="cuda") * 0.01
    right_scale = torch.rand((experts, outer), device="cuda") * 0.01

    def run() -> None:
        torch._scaled_grouped_mm(
            left, right.transpose(1, 2), left_scale, right_scale, offs=ends,
            out_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip

    return run


def measure(record: dict[str, float], generator: torch.Generator) -> None:
    """Seconds of the layer with no activation and with each one's, into ``record``."""
    counts = make_counts(8192, "uniform", 7, 9315)
    routing = make_routing(8192, counts, TILE, 7)
    sets: list[Buffers] = [make_buffers(routing, INTERMEDIATE, FP8, generator) for _ in range(4)]
    tiles = torch.tensor([-(-count // TILE) for count in counts])
    ends = (torch.cumsum(tiles, 0) * TILE).to(torch.int32).cuda()
    try:
        first = _grouped(routing.padded_rows, HIDDEN, 2 * INTERMEDIATE, ends)
        second = _grouped(routing.padded_rows, INTERMEDIATE, HIDDEN, ends)
        first()
        second()
        torch.cuda.synchronize()
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        print(f"expert layer not run: torch's grouped FP8 GEMM refused ({error})")
        return
    activations: dict[str, Callable[[int], None] | None] = {"none": None}
    for name in ("flashinfer_main", "flashinfer_3969"):
        launch = rivals.flashinfer(name)
        if launch is not None:
            activations[name] = lambda i, go=launch: go(routing, sets[i], INTERMEDIATE)  # type: ignore[misc]
    activations["triton"] = lambda i: contenders.triton_op(routing, sets[i], INTERMEDIATE)
    for name, activation in activations.items():

        def layer(index: int, activation: Callable[[int], None] | None = activation) -> None:
            first()
            if activation is not None:
                activation(index)
            second()

        record[f"layer {name}"] = graph_seconds(layer, len(sets), 8, 6)
