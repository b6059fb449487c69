"""Make the inputs that every contender is timed and checked on: a routing, its rows, its scales."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from patched_engine.kernels.plan import estimate_local_rows
from patched_engine.kernels.spec import GROUP, bytes_per_valid_row

EXPERTS, LOCAL_EXPERTS, TOP_K = 256, 32, 8


@dataclass(frozen=True)
class Routing:
    """Rows by local expert, padded to ``tile``; ``row_of_slot`` as FlashInfer main reads it."""

    tokens: int
    tile: int
    counts: tuple[int, ...]
    valid_rows: int
    padded_rows: int
    capacity_rows: int
    num_ctas: torch.Tensor
    total_rows: torch.Tensor
    mn_limit: torch.Tensor
    expert_of_tile: torch.Tensor
    row_of_slot: torch.Tensor
    valid_index: torch.Tensor

    @property
    def rows_estimate(self) -> int:
        return estimate_local_rows(self.tokens, TOP_K, LOCAL_EXPERTS, EXPERTS)


def make_counts(tokens: int, kind: str, seed: int, valid_rows: int | None = None) -> list[int]:
    """Rows of each local expert: ``uniform`` or ``skewed`` routing, or ``remote`` for none at all.

    ``valid_rows`` fixes their sum; without it they fall as the routing has it.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.ones(EXPERTS, dtype=torch.float64)
    if kind == "skewed":
        ranks = torch.randperm(EXPERTS, generator=generator).to(torch.float64)
        weights = 1.0 / (ranks + 4.0)
    if kind == "remote":
        return [0] * LOCAL_EXPERTS
    if valid_rows is None:
        drawn = torch.multinomial(weights, tokens * TOP_K, replacement=True, generator=generator)
        return torch.bincount(drawn, minlength=EXPERTS)[:LOCAL_EXPERTS].tolist()
    drawn = torch.multinomial(
        weights[:LOCAL_EXPERTS], valid_rows, replacement=True, generator=generator
    )
    return torch.bincount(drawn, minlength=LOCAL_EXPERTS).tolist()


def make_routing(
    tokens: int, counts: list[int], tile: int, seed: int, device: str = "cuda"
) -> Routing:
    """Lay ``counts`` out as FlashInfer's routing does and scatter them over the token slots."""
    per_expert = torch.tensor(counts, dtype=torch.int64)
    tiles = (per_expert + tile - 1) // tile
    first_tile = torch.cumsum(tiles, 0) - tiles
    starts = first_tile * tile
    valid = int(per_expert.sum())
    expert_of_tile = torch.repeat_interleave(torch.arange(len(counts)), tiles)
    tile_index = torch.arange(int(tiles.sum()))
    ends = (starts + per_expert)[expert_of_tile]
    mn_limit = torch.minimum((tile_index + 1) * tile, ends)
    rows = torch.repeat_interleave(starts - (torch.cumsum(per_expert, 0) - per_expert), per_expert)
    rows = rows + torch.arange(valid)
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(tokens * TOP_K, generator=generator)[:valid]
    row_of_slot = torch.full((tokens * TOP_K,), -1, dtype=torch.int32)
    row_of_slot[slots] = rows.to(torch.int32)
    # What the engine allocates: every slot may land here, each expert padded to a whole tile.
    capacity = (tokens * TOP_K + len(counts) * (tile - 1) + tile - 1) // tile * tile
    capacity = max(capacity, int(tiles.sum()) * tile)

    def on_card(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.int32).to(device)

    room = torch.zeros(capacity // tile, dtype=torch.int64)
    limits, owners = room.clone(), room.clone()
    limits[: mn_limit.numel()] = mn_limit
    owners[: expert_of_tile.numel()] = expert_of_tile
    padded = int(tiles.sum()) * tile
    return Routing(
        tokens=tokens, tile=tile, counts=tuple(counts), valid_rows=valid, padded_rows=padded,
        capacity_rows=capacity, num_ctas=on_card(tiles.sum().reshape(1)),
        total_rows=on_card(torch.tensor([padded])), mn_limit=on_card(limits),
        expert_of_tile=on_card(owners), row_of_slot=row_of_slot.to(device),
        valid_index=rows.to(device),
    )  # fmt: skip


@dataclass
class Buffers:
    """One set of inputs and outputs for a routing; several are rotated so that L2 never helps."""

    x: torch.Tensor
    xs: torch.Tensor | None
    y: torch.Tensor
    ys: torch.Tensor
    extra: dict[str, torch.Tensor] = field(default_factory=dict)


def make_buffers(
    routing: Routing, intermediate: int, dtype: torch.dtype, generator: torch.Generator
) -> Buffers:
    """Random rows (the valid part and its padding), capacity as the engine would allocate."""
    device = routing.num_ctas.device
    groups, capacity = intermediate // GROUP, routing.capacity_rows
    used = max(routing.padded_rows, 1)
    x = torch.empty((capacity, 2 * intermediate), dtype=dtype, device=device)
    for first in range(0, used, 8192):
        last = min(first + 8192, used)
        noise = torch.randn((last - first, 2 * intermediate), generator=generator, device=device)
        x[first:last] = (noise * (60.0 if dtype == torch.float8_e4m3fn else 1.0)).to(dtype)
    xs = None
    if dtype == torch.float8_e4m3fn:
        xs = torch.rand(2 * groups * capacity, generator=generator, device=device) * 0.03 + 0.002
    y = torch.empty((capacity, intermediate), dtype=torch.float8_e4m3fn, device=device)
    ys = torch.empty(groups * capacity, dtype=torch.float32, device=device)
    return Buffers(x, xs, y, ys)


def moved_bytes(routing: Routing, intermediate: int, dtype: torch.dtype) -> int:
    """Bytes that any kernel must move for this routing."""
    return routing.valid_rows * bytes_per_valid_row(intermediate, dtype.itemsize)
