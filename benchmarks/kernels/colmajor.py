"""Spec (B) beside vLLM's own function on the same card: bit-equality first, then speed."""

from __future__ import annotations

import itertools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels import rivals
from benchmarks.kernels.timing import graph_seconds, launches_apart, sets_for
from patched_engine.kernels import vllm_activation
from patched_engine.kernels.vllm_activation import HOME, SWITCH, USERS
from patched_engine.kernels.vllm_ops import silu_mul_quant_colmajor

SHAPES = (
    (128, 2048, 0), (256, 2048, 0), (512, 2048, 0), (1024, 2048, 0), (8192, 2048, 0),
    (32768, 2048, 0), (8192, 512, 0),
    (8192, 7168, 0), (4096, 2048, 32), (8192, 2048, 32), (32768, 2048, 32), (8192, 512, 32),
    (8192, 7168, 32),
)  # fmt: skip
"""(rows M, intermediate size I, experts; 0 for the plain call)."""

ALIGNMENT = 128


def make_ends(rows: int, experts: int, seed: int) -> torch.Tensor:
    """int32 row ends of ``experts`` uneven experts within ``rows``, one of them empty."""
    generator = torch.Generator().manual_seed(seed)
    room = rows // experts // ALIGNMENT * ALIGNMENT
    counts = torch.randint(1, room + 1, (experts,), generator=generator)
    counts[experts // 2] = 0
    ends, start = [], 0
    for count in counts.tolist():
        ends.append(start + count)
        start = -(-ends[-1] // ALIGNMENT) * ALIGNMENT
    return torch.tensor(ends, dtype=torch.int32)


def live_rows(rows: int, ends: torch.Tensor | None) -> torch.Tensor:
    """bool [rows]: the rows that the call must write."""
    live = torch.ones(rows, dtype=torch.bool)
    if ends is not None:
        live[:] = False
        start = 0
        for end in ends.cpu().tolist():
            live[start:end] = True
            start = -(-end // ALIGNMENT) * ALIGNMENT
    return live


def _pair(x: torch.Tensor, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(codes, scales) of vLLM's function and of ours, on outputs poisoned alike."""
    theirs = rivals.vllm_function()
    assert theirs is not None
    results = []
    for function in (theirs, silu_mul_quant_colmajor):
        out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=torch.float8_e4m3fn, device="cuda")
        out.view(torch.uint8).fill_(0x5A)
        codes, scales = function(x, out, **options)
        results.append((codes.view(torch.uint8).clone(), scales))
    return results


def equality(quick: bool = False) -> list[tuple[str, bool]]:
    """Every option of spec (B) against vLLM's function, bit for bit, special values included."""
    found = []
    generator = torch.Generator(device="cuda").manual_seed(11)
    sizes = ((128, 128), (384, 2048)) if quick else ((128, 128), (384, 2048), (4096, 1536))
    options = itertools.product(
        (torch.bfloat16, torch.float16), (False, True), (None, 7.0),
        ((1.0, 0.0), (1.702, 1.0)), (0, 4),
    )  # fmt: skip
    for (rows, size), (dtype, ue8m0, clamp, (alpha, beta), experts) in itertools.product(
        sizes, list(options)
    ):
        if experts and rows < experts * ALIGNMENT:
            continue
        x = torch.randn((rows, 2 * size), generator=generator, device="cuda").mul_(3).to(dtype)
        _plant(x)
        ends = make_ends(rows, experts, rows).cuda() if experts else None
        theirs, ours = _pair(
            x, use_ue8m0=ue8m0, clamp_limit=clamp, alpha=alpha, beta=beta, expert_ends=ends,
            expert_alignment=ALIGNMENT if experts else 0,
        )  # fmt: skip
        live = live_rows(rows, ends).cuda()
        equal = bool(torch.equal(theirs[0], ours[0]))  # rows nobody may write kept their poison
        bits = [scales[live].view(torch.int32) for scales in (theirs[1], ours[1])]
        equal = equal and bool(torch.equal(bits[0], bits[1]))
        equal = equal and theirs[1].stride() == ours[1].stride()
        name = (
            f"M {rows}, I {size}, {str(dtype).removeprefix('torch.')}, ue8m0 {ue8m0}, "
            f"clamp {clamp}, alpha {alpha}, beta {beta}, experts {experts}"
        )
        found.append((name, equal))
    return found


def _plant(x: torch.Tensor) -> None:
    """Zeros of both signs, NaN, infinities, subnormal, huge and very negative gates."""
    half = x.shape[1] // 2
    huge = 1e30 if x.dtype == torch.bfloat16 else 6e4
    x[0] = 0.0
    x[1] = -0.0
    x[2, ::5] = float("nan")
    x[3, 7], x[3, half + 9] = float("inf"), float("-inf")
    x[4] = 1e-39 if x.dtype == torch.bfloat16 else 1e-7
    x[5] = huge
    x[6, :half] = torch.linspace(-95.0, -80.0, half).to(x.dtype)
    x[7] *= 1e-12


def replacement_runs_ours() -> str | None:
    """Put our kernel into a module that holds vLLM's own function, and call it at every shape.

    Returns what went wrong: a refusal, a fallback on a shape that we support, or a count that does
    not show every call; None when each call ran our kernel.
    """
    theirs = rivals.vllm_function()
    if theirs is None:
        return "not run: vLLM's module is not in the rivals' folder"
    module = sys.modules[theirs.__module__]
    parents = [HOME.rsplit(".", depth)[0] for depth in range(1, HOME.count(".") + 1)]
    names = [HOME, *USERS, *parents]
    before = {name: sys.modules.get(name) for name in names}
    switch = os.environ.get(SWITCH)
    try:
        for name in parents:
            sys.modules[name] = types.ModuleType(name)
        sys.modules[HOME] = module
        sys.modules[USERS[0]] = types.ModuleType(USERS[0])
        os.environ[SWITCH] = "1"
        status = vllm_activation.apply()
        if not status.applied:
            return f"refused: {status.reason}"
        function = getattr(module, rivals.VLLM_NAMES[1])
        for rows, size, experts in SHAPES:
            x = torch.randn((rows, 2 * size), device="cuda").to(torch.bfloat16)
            ends = make_ends(rows, experts, 3).cuda() if experts else None
            function(
                input=x, expert_ends=ends, expert_alignment=ALIGNMENT if experts else 0
            )  # fmt: skip
        status = vllm_activation.status()
        if status.fallbacks or status.ours != len(SHAPES):
            return f"{status.ours} of {len(SHAPES)} calls ran ours; fallbacks {status.fallbacks}"
        return None
    finally:
        vllm_activation.restore()
        os.environ.pop(SWITCH) if switch is None else os.environ.update({SWITCH: switch})
        for name, old in before.items():
            if old is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = old


def _launcher(
    function: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor], ends: Any
) -> Callable[[int], None]:
    alignment = ALIGNMENT if ends is not None else 0

    def launch(index: int) -> None:
        function(
            inputs[index],
            outputs[index],
            use_ue8m0=False,
            expert_ends=ends,
            expert_alignment=alignment,
        )

    return launch


def measure(record: dict[str, float], generator: torch.Generator, quick: bool) -> None:
    """Seconds of vLLM's function and ours at every shape, each twice, into ``record``."""
    theirs = rivals.vllm_function()
    for rows, size, experts in SHAPES[:4] if quick else SHAPES:
        ends = make_ends(rows, experts, 3).cuda() if experts else None
        live = int(live_rows(rows, ends).sum())
        sets = sets_for(live * (5 * size + size // 32))
        inputs = [
            torch.randn((rows, 2 * size), generator=generator, device="cuda").to(torch.bfloat16)
            for _ in range(sets)
        ]
        outputs = [
            torch.empty((rows, size), dtype=torch.float8_e4m3fn, device="cuda") for _ in inputs
        ]
        name = f"M {rows} I {size}" + (f" E {experts}" if experts else "")
        for label, function in (("vllm", theirs), ("ours", silu_mul_quant_colmajor)):
            if function is None:
                continue
            for again in ("", " again"):
                record[f"{label}{again} {name}"] = graph_seconds(
                    _launcher(function, inputs, outputs, ends), sets, 48
                )
        with launches_apart():
            record[f"ours apart {name}"] = graph_seconds(
                _launcher(silu_mul_quant_colmajor, inputs, outputs, ends), sets, 48
            )
        del inputs, outputs
        torch.cuda.empty_cache()
