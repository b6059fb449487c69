"""Judge a kernel of spec (A) against float64 over every tile, size, dtype and routing, and edges.

Acceptance: scale relative error <= 1e-5; at most 1e-3 of the codes differ and none by more than
one step; padding bytes unchanged; a rerun bit-identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.kernels.problems import (
    LOCAL_EXPERTS,
    Buffers,
    Routing,
    make_buffers,
    make_counts,
    make_routing,
)
from patched_engine.kernels.reference import code_steps, swiglu_requant_reference
from patched_engine.kernels.spec import GROUP

Runner = Callable[[Routing, Buffers, int], None]
"""Runs a kernel on one problem: routing, buffers, intermediate size."""

SCALE_TOLERANCE = 1e-5
MISMATCH_TOLERANCE = 1e-3
POISON = 0x5A


@dataclass(frozen=True)
class Verdict:
    """One row of the table."""

    case: str
    rows_checked: int
    scale_error: float
    code_mismatch: float
    max_code_steps: int
    padding_kept: bool
    rerun_identical: bool

    @property
    def passed(self) -> bool:
        return (
            self.scale_error <= SCALE_TOLERANCE
            and self.code_mismatch <= MISMATCH_TOLERANCE
            and self.max_code_steps <= 1
            and self.padding_kept
            and self.rerun_identical
        )


def _poison(buffers: Buffers) -> None:
    buffers.y.view(torch.uint8).fill_(POISON)
    buffers.ys.view(torch.uint8).fill_(POISON)


def _gather_scales(flat: torch.Tensor, routing: Routing, groups: int) -> torch.Tensor:
    """[valid rows, groups] of a flat block * P + row layout."""
    used = flat[: groups * routing.padded_rows].view(groups, routing.padded_rows)
    return used[:, routing.valid_index].t()


def judge(case: str, run: Runner, routing: Routing, buffers: Buffers, intermediate: int) -> Verdict:
    """Run twice on poisoned outputs and compare with float64 on (a sample of) the valid rows."""
    groups = intermediate // GROUP
    _poison(buffers)
    run(routing, buffers, intermediate)
    torch.cuda.synchronize()
    first_y, first_ys = buffers.y.view(torch.uint8).clone(), buffers.ys.view(torch.uint8).clone()
    _poison(buffers)
    run(routing, buffers, intermediate)
    torch.cuda.synchronize()
    identical = bool(
        torch.equal(first_y, buffers.y.view(torch.uint8))
        and torch.equal(first_ys, buffers.ys.view(torch.uint8))
    )
    unwritten = torch.ones(buffers.y.shape[0], dtype=torch.bool, device=first_y.device)
    unwritten[routing.valid_index] = False
    kept = bool((first_y[unwritten] == POISON).all())
    flat = first_ys.view(torch.int32)
    written = torch.zeros_like(flat, dtype=torch.bool)
    if routing.padded_rows:
        grid = written[: groups * routing.padded_rows].view(groups, routing.padded_rows)
        grid[:, routing.valid_index] = True
    poison_word = int.from_bytes(bytes([POISON] * 4), "little")
    kept = kept and bool((flat[~written] == poison_word).all())
    if routing.valid_rows == 0:
        return Verdict(case, 0, 0.0, 0.0, 0, kept, identical)

    pick = torch.arange(routing.valid_rows, device=first_y.device)
    if routing.valid_rows > 384:
        pick = torch.cat(
            [pick[:128], pick[128 : -128 : max(1, routing.valid_rows // 128)], pick[-128:]]
        )
    rows = routing.valid_index[pick]
    xs = None
    if buffers.xs is not None:
        xs = _gather_scales(buffers.xs, routing, 2 * groups)[pick]
    owner = routing.expert_of_tile.to(torch.int64)[rows // routing.tile]
    controls = {
        name: buffers.extra[name][owner] for name in ("alpha", "beta", "limit")
        if name in buffers.extra
    }  # fmt: skip
    want_codes, want_scales = swiglu_requant_reference(buffers.x[rows], xs, **controls)
    got_scales = _gather_scales(buffers.ys, routing, groups)[pick].cpu().to(torch.float64)
    both_infinite = got_scales.isinf() & want_scales.isinf()
    error = torch.where(
        both_infinite, torch.zeros_like(got_scales), (got_scales - want_scales).abs() / want_scales
    )
    error = torch.where(error.isnan(), torch.full_like(error, math.inf), error)
    steps = code_steps(buffers.y[rows], want_codes)
    return Verdict(
        case, len(rows), float(error.max()), float((steps > 0).double().mean()), int(steps.max()),
        kept, identical,
    )  # fmt: skip


def controls_for(generator: torch.Generator, device: str = "cuda") -> dict[str, torch.Tensor]:
    """alpha, beta and limit of each local expert: the OAI values, spread a little."""

    def spread(low: float, high: float) -> torch.Tensor:
        unit = torch.rand(LOCAL_EXPERTS, generator=generator, device=device)
        return low + (high - low) * unit

    return {"alpha": spread(1.5, 1.9), "beta": spread(0.5, 1.5), "limit": spread(5.0, 9.0)}


FP8_EDGES = (
    "zero", "nan elements", "all nan", "huge scales", "tiny scales", "subnormal product",
    "infinite scale", "nan scale", "very negative gate", "subnormal codes", "opposite scales",
    "negative scales", "zero with huge scales", "zero scale", "largest codes",
)  # fmt: skip
BF16_EDGES = (
    "zero", "nan elements", "infinite", "huge", "tiny", "subnormal", "very negative gate",
    "overflowing product",
)  # fmt: skip


def plant_edges(  # noqa: PLR0912, PLR0915 - one branch an edge case
    routing: Routing, buffers: Buffers, intermediate: int
) -> None:
    """Overwrite the first valid rows with one edge case each, in the order of the tuples above."""
    groups = intermediate // GROUP
    index = [int(row) for row in routing.valid_index.cpu()]
    raw = buffers.x.view(torch.uint8)
    if buffers.xs is None:
        for name, row in zip(BF16_EDGES, index, strict=False):
            values = buffers.x[row]
            if name == "zero":
                values.zero_()
            elif name == "nan elements":
                values[::7] = math.nan
            elif name == "infinite":
                values[5], values[intermediate + 9] = math.inf, -math.inf
            elif name == "huge":
                values.mul_(1e15)
            elif name == "tiny":
                values.mul_(1e-17)
            elif name == "subnormal":
                values.fill_(1e-40)
            elif name == "very negative gate":
                values[intermediate:] = -86.0
            elif name == "overflowing product":
                values.fill_(1e30)
        return
    scales = buffers.xs[: 2 * groups * routing.padded_rows].view(2 * groups, routing.padded_rows)
    for name, row in zip(FP8_EDGES, index, strict=False):
        up, gate = scales[:groups, row], scales[groups:, row]
        if name == "zero":
            raw[row] = 0
        elif name == "nan elements":
            raw[row, ::7] = 0x7F
        elif name == "all nan":
            raw[row] = 0xFF
        elif name == "huge scales":
            up.fill_(2.0**40), gate.fill_(2.0**40)
        elif name == "tiny scales":
            up.fill_(2.0**-90), gate.fill_(2.0**-80)
        elif name == "subnormal product":
            up.fill_(2.0**-66), gate.fill_(2.0**-65)
        elif name == "infinite scale":
            gate.fill_(math.inf)
        elif name == "nan scale":
            up.fill_(math.nan)
        elif name == "very negative gate":
            raw[row, intermediate:] = 0xF8  # -256
            gate.fill_(0.39)  # -99.8
            up.fill_(2.0**20)
        elif name == "subnormal codes":
            raw[row] = 0x01
        elif name == "opposite scales":
            up.fill_(1e30), gate.fill_(1e-30)
        elif name == "negative scales":
            up.fill_(-0.01), gate.fill_(-0.02)
        elif name == "zero with huge scales":
            raw[row] = 0
            up.fill_(1e30), gate.fill_(1e30)
        elif name == "zero scale":
            up.fill_(0.0)
        elif name == "largest codes":
            raw[row] = 0x7E


def cases(quick: bool) -> Iterator[tuple[str, list[int], int, int, int, torch.dtype, bool, bool]]:
    """(name, counts, tokens, tile, intermediate, dtype, with controls, with edges)."""
    fp8, bf16 = torch.float8_e4m3fn, torch.bfloat16
    tiles = (8, 64) if quick else (8, 16, 24, 32, 64, 128)
    sizes = (128, 2048) if quick else (128, 384, 1536, 2048, 3072)
    for tile in tiles:
        for size in sizes:
            for dtype in (fp8, bf16):
                for controls in (False, True):
                    for kind in ("uniform", "skewed"):
                        yield (kind, make_counts(256, kind, tile + size), 256, tile, size, dtype,
                               controls, False)  # fmt: skip
    for dtype in (fp8, bf16):
        for controls in (False, True):
            one = [0] * LOCAL_EXPERTS
            one[3] = 1
            crowd = [0] * LOCAL_EXPERTS
            crowd[LOCAL_EXPERTS - 1] = 700
            yield "one row", one, 1, 64, 2048, dtype, controls, False
            yield "all remote", [0] * LOCAL_EXPERTS, 512, 64, 2048, dtype, controls, False
            yield "one expert", crowd, 700, 64, 2048, dtype, controls, False
            yield "edges", make_counts(256, "uniform", 5), 256, 16, 512, dtype, controls, True
            yield "edges", make_counts(256, "uniform", 5), 256, 64, 512, dtype, controls, True
        yield "no limit", make_counts(256, "uniform", 5), 256, 64, 512, dtype, True, True
    yield "8192 tokens", make_counts(8192, "uniform", 9, 9315), 8192, 64, 2048, fp8, False, False


def table(run: Runner, *, dtypes: tuple[torch.dtype, ...], quick: bool = False) -> list[Verdict]:
    """Every case that ``run`` takes (``dtypes``), judged."""
    verdicts: list[Verdict] = []
    for kind, counts, tokens, tile, size, dtype, controls, edges in cases(quick):
        if dtype not in dtypes:
            continue
        seed = len(verdicts) + 1
        generator = torch.Generator(device="cuda").manual_seed(seed)
        routing = make_routing(tokens, counts, tile, seed)
        buffers = make_buffers(routing, size, dtype, generator)
        if edges:
            plant_edges(routing, buffers, size)
        if controls:
            buffers.extra = controls_for(generator)
        if kind == "no limit":
            del buffers.extra["limit"]
        name = str(dtype).removeprefix("torch.").removesuffix("_e4m3fn").replace("float8", "fp8")
        case = f"{kind}, tile {tile}, I {size}, {name}{', OAI' if controls else ''}"
        verdicts.append(judge(case, run, routing, buffers, size))
    return verdicts


def one_graph_over_new_routings(run: Runner, *, intermediate: int = 1024) -> bool:
    """Capture one launch, replay it with other routings in the same buffers, none and all included.

    True when every replay equals a fresh launch bit for bit, padding included.
    """
    generator = torch.Generator(device="cuda").manual_seed(3)
    tokens, tile = 512, 32
    kinds = ("uniform", "skewed", "remote", "skewed", "uniform")
    counts = [make_counts(tokens, kind, seed) for seed, kind in enumerate(kinds)]
    routings = [make_routing(tokens, each, tile, 1) for each in counts]
    fullest = max(routings, key=lambda routing: routing.padded_rows)
    buffers = make_buffers(fullest, intermediate, torch.float8_e4m3fn, generator)
    stage = make_routing(tokens, counts[0], tile, 1)

    def load(routing: Routing) -> None:
        for name in ("num_ctas", "total_rows", "mn_limit", "expert_of_tile", "row_of_slot"):
            getattr(stage, name).copy_(getattr(routing, name))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(stage, buffers, intermediate)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run(stage, buffers, intermediate)
    for routing in routings:
        load(routing)
        _poison(buffers)
        graph.replay()
        torch.cuda.synchronize()
        replayed = buffers.y.view(torch.uint8).clone(), buffers.ys.view(torch.int32).clone()
        _poison(buffers)
        run(routing, buffers, intermediate)
        torch.cuda.synchronize()
        if not torch.equal(replayed[0], buffers.y.view(torch.uint8)):
            return False
        if not torch.equal(replayed[1], buffers.ys.view(torch.int32)):
            return False
    return True
