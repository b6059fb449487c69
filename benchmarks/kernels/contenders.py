"""Each way to run the activation, behind one call: our Triton op, our CUDA overlay, the rivals."""

from __future__ import annotations

import torch

from benchmarks.kernels.problems import Buffers, Routing
from patched_engine.kernels.ops import swiglu_requant_into


def triton_op(
    routing: Routing, buffers: Buffers, intermediate: int, rows_estimate: int | None = None
) -> None:
    """Our custom op, as a caller in the engine would use it (``intermediate`` is in the shapes)."""
    del intermediate
    owners: torch.Tensor | None = routing.expert_of_tile if buffers.extra else None
    swiglu_requant_into(
        buffers.x,
        buffers.xs,
        buffers.y,
        buffers.ys,
        routing.num_ctas,
        routing.mn_limit,
        routing.total_rows,
        routing.tile,
        routing.rows_estimate if rows_estimate is None else rows_estimate,
        owners,
        buffers.extra.get("alpha"),
        buffers.extra.get("beta"),
        buffers.extra.get("limit"),
    )
