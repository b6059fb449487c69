"""One whole run of every measurement, ours and the rivals', as a flat record of seconds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.kernels import colmajor, contenders, expert_layer, overlay_launcher, rivals
from benchmarks.kernels.correctness import controls_for
from benchmarks.kernels.problems import (
    Buffers,
    Routing,
    make_buffers,
    make_counts,
    make_routing,
    moved_bytes,
)
from benchmarks.kernels.timing import graph_seconds, launches_apart, sets_for, stream_seconds

INTERMEDIATE, TILE, SEED = 2048, 64, 7
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
Record = dict[str, float]

SHAPES: tuple[tuple[str, int, str, int | None, torch.dtype, bool], ...] = (
    ("8192", 8192, "uniform", 9315, FP8, False),
    ("1024", 1024, "uniform", 1024, FP8, False),
    ("65536", 65536, "uniform", 65536, FP8, False),
    ("65536 skewed", 65536, "skewed", 65536, FP8, False),
    ("8192 remote", 8192, "remote", None, FP8, False),
    ("8192 OAI", 8192, "uniform", 9315, FP8, True),
    ("8192 bf16", 8192, "uniform", 9315, BF16, False),
)
"""(name, tokens, routing, valid rows, input dtype, with the OAI controls); I = 2048, tile 64."""

QUICK_SHAPES = ("8192", "1024", "8192 remote")


def _problem(
    tokens: int, kind: str, rows: int | None, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Routing, list[Buffers], int]:
    routing = make_routing(tokens, make_counts(tokens, kind, SEED, rows), TILE, SEED)
    total = moved_bytes(routing, INTERMEDIATE, dtype)
    sets = sets_for(total) if total else 4
    buffers = [make_buffers(routing, INTERMEDIATE, dtype, generator) for _ in range(sets)]
    return routing, buffers, total


def _measure_shape(
    record: Record,
    name: str,
    routing: Routing,
    buffers: list[Buffers],
    total_bytes: int,
    overlay: overlay_launcher.Launch | None,
) -> None:
    sets = len(buffers)

    def timed(run: Callable[..., None], launches: int = 48, *extra: int) -> float:
        return graph_seconds(
            lambda index: run(routing, buffers[index], INTERMEDIATE, *extra), sets, launches
        )

    if total_bytes:
        record[f"stream {name}"] = stream_seconds(total_bytes, launches=48)
    record[f"triton {name}"] = timed(contenders.triton_op)
    record[f"triton again {name}"] = timed(contenders.triton_op)
    with launches_apart():
        record[f"triton apart {name}"] = timed(contenders.triton_op)
    if buffers[0].xs is not None and overlay is not None:
        record[f"overlay {name}"] = timed(overlay)
        record[f"overlay again {name}"] = timed(overlay)
    if buffers[0].xs is not None and not buffers[0].extra:
        for rival in ("flashinfer_main", "flashinfer_3969"):
            launch = rivals.flashinfer(rival)
            if launch is not None:
                record[f"{rival} {name}"] = timed(launch, 12)
    if name == "8192":
        for label, estimate in (
            ("over", routing.rows_estimate * 8),
            ("under", routing.rows_estimate // 8),
        ):
            record[f"triton {label} {name}"] = timed(contenders.triton_op, 48, estimate)
            if overlay is not None:
                record[f"overlay {label} {name}"] = timed(overlay, 48, estimate)


def run_once(overlay_path: str, quick: bool) -> Record:
    """Every timing once; ``overlay_path`` is the built launcher, or empty where nvcc is missing."""
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    overlay = overlay_launcher.load(Path(overlay_path)) if overlay_path else None
    record: Record = {}
    for name, tokens, kind, rows, dtype, controls in SHAPES:
        if quick and name not in QUICK_SHAPES:
            continue
        routing, buffers, total = _problem(tokens, kind, rows, dtype, generator)
        if controls:
            values = controls_for(generator)
            for each in buffers:
                each.extra = values
        _measure_shape(record, name, routing, buffers, total, overlay)
        del buffers
        torch.cuda.empty_cache()
    colmajor.measure(record, generator, quick)
    if not quick:
        expert_layer.measure(record, generator)
    return record


if __name__ == "__main__":
    print("RECORD " + json.dumps(run_once(sys.argv[1], os.environ.get("QUICK") == "1")))
