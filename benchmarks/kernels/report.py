"""Turn the runs' records into one table, the bars, and the files under benchmarks/results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

Record = dict[str, float]


@dataclass(frozen=True)
class Bar:
    """One limit: ``figure`` must be at most (or at least) ``limit``; ``noise`` is relative."""

    name: str
    figure: float | None
    limit: float
    at_most: bool
    unit: str
    noise: float

    @property
    def verdict(self) -> str:
        """ok, short, below-noise (the distance to the limit is inside A/A noise) or not-run."""
        if self.figure is None:
            return "not-run"
        if abs(self.figure - self.limit) < self.noise * self.limit:
            return "below-noise"
        holds = self.figure <= self.limit if self.at_most else self.figure >= self.limit
        return "ok" if holds else "short"

    def line(self) -> str:
        figure = "-" if self.figure is None else f"{self.figure:.3f}"
        sign = "<=" if self.at_most else ">="
        return (
            f"{self.name:<52} {figure:>9} {sign} {self.limit:<7g}{self.unit:<4} "
            f"noise {self.noise:6.2%}  {self.verdict}"
        )


def median(records: list[Record], of: Callable[[Record], float]) -> float | None:
    """The median over the runs of a figure computed within each, or None where it is missing."""
    try:
        return statistics.median(of(record) for record in records)
    except KeyError:
        return None


def noise(records: list[Record], name: str, kind: str = "triton") -> float:
    """A/A noise of ``kind`` at ``name``: the median relative difference of its two timings."""
    found = median(
        records,
        lambda r: abs(r[f"{kind} {name}"] - r[f"{kind} again {name}"]) / r[f"{kind} {name}"],
    )
    return found or 0.0


def spec_a_bars(records: list[Record]) -> list[Bar]:
    """The limits of spec (A), in the order of the issue's list."""

    def at(key: str) -> float | None:
        return median(records, lambda r: r[key] * 1e6)

    def share(kind: str, name: str) -> float | None:
        return median(records, lambda r: r[f"stream {name}"] / r[f"{kind} {name}"])

    def times(top: str, bottom: str) -> float | None:
        return median(records, lambda r: r[top] / r[bottom])

    others = ("1024", "65536", "65536 skewed", "8192 remote", "8192 OAI", "8192 bf16")
    n = {name: noise(records, name) for name in ("8192", *others)}
    overlay = noise(records, "8192", "overlay")
    return [
        Bar("A 8192 tokens", at("triton 8192"), 18.0, True, "us", n["8192"]),
        Bar("A 8192 share of the stream", share("triton", "8192"), 0.88, False, "", n["8192"]),
        Bar("A 8192 against FlashInfer #3969", times("flashinfer_3969 8192", "triton 8192"),
            4.5, False, "x", n["8192"]),
        Bar("A 8192 against FlashInfer main", times("flashinfer_main 8192", "triton 8192"),
            20.0, False, "x", n["8192"]),
        Bar("A 65536 uniform share of the stream", share("triton", "65536"), 0.90, False, "",
            n["65536"]),
        Bar("A 65536 skewed share of the stream", share("triton", "65536 skewed"), 0.90, False, "",
            n["65536 skewed"]),
        Bar("A 1024 tokens", at("triton 1024"), 5.2, True, "us", n["1024"]),
        Bar("A 8192 all rows remote", at("triton 8192 remote"), 4.0, True, "us", n["8192 remote"]),
        Bar("A 8192 OAI share of the stream", share("triton", "8192 OAI"), 0.82,
            False, "", n["8192 OAI"]),
        Bar("A 8192 bf16 share of its stream", share("triton", "8192 bf16"), 0.88, False, "",
            n["8192 bf16"]),
        Bar("A 8192 rows overestimated 8x", times("triton over 8192", "triton 8192"), 1.3, True,
            "x", n["8192"]),
        Bar("A 8192 rows underestimated 8x", times("triton under 8192", "triton 8192"), 1.3, True,
            "x", n["8192"]),
        Bar("A CUDA overlay 8192 share of the stream", share("overlay", "8192"), 0.80, False, "",
            overlay),
    ]  # fmt: skip


def spec_b_bars(records: list[Record]) -> list[Bar]:
    """vLLM's own time over ours at every shape that was run."""
    names = [key.removeprefix("ours M ") for key in records[0] if key.startswith("ours M ")]
    return [
        Bar(
            f"B M {name} against vLLM's own",
            median(records, lambda r, name=name: r[f"vllm M {name}"] / r[f"ours M {name}"]),  # type: ignore[misc]
            1.0,
            False,
            "x",
            max(_aa(records, name, "ours"), _aa(records, name, "vllm")),
        )
        for name in names
    ]


def _aa(records: list[Record], name: str, kind: str) -> float:
    found = median(
        records,
        lambda r: abs(r[f"{kind} M {name}"] - r[f"{kind} again M {name}"]) / r[f"{kind} M {name}"],
    )
    return found or 0.0


def timing_table(records: list[Record], shapes: list[str]) -> list[str]:
    """Markdown: a row a shape, microseconds of each contender side by side."""
    kinds = ("stream", "triton", "triton apart", "overlay", "flashinfer_3969", "flashinfer_main")
    lines = [
        "| tokens (I=2048, tile 64) | stream | Triton op | the same, launches apart | CUDA overlay "
        "| FlashInfer #3969 | FlashInfer main | of the stream | launches apart |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in shapes:
        cells = [median(records, lambda r, k=kind: r[f"{k} {name}"] * 1e6) for kind in kinds]  # type: ignore[misc]  # noqa: B023
        shares = [
            median(records, lambda r, k=kind: r[f"stream {name}"] / r[f"{k} {name}"])  # type: ignore[misc]  # noqa: B023
            for kind in ("triton", "triton apart")
        ]
        shown = [
            *("-" if cell is None else f"{cell:.2f}" for cell in cells),
            *("-" if share is None else f"{share:.3f}" for share in shares),
        ]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


def colmajor_table(records: list[Record]) -> list[str]:
    """Markdown: spec (B), vLLM's own and ours."""
    lines = [
        "| shape | vLLM's own, us | ours, us | gain | gain, launches apart |",
        "|---|---|---|---|---|",
    ]
    for key in records[0]:
        if not key.startswith("ours M "):
            continue
        name = key.removeprefix("ours ")
        ours = median(records, lambda r: r[f"ours {name}"] * 1e6)  # noqa: B023
        theirs = median(records, lambda r: r[f"vllm {name}"] * 1e6)  # noqa: B023
        gains = [
            median(records, lambda r, k=kind: r[f"vllm {name}"] / r[f"{k} {name}"])  # type: ignore[misc]  # noqa: B023
            for kind in ("ours", "ours apart")
        ]
        if ours is not None:
            shown = ["-" if gain is None else f"{gain:.3f}" for gain in gains]
            lines.append(
                f"| {name} | {'-' if theirs is None else f'{theirs:.2f}'} | {ours:.2f} | "
                f"{' | '.join(shown)} |"
            )
    return lines


def layer_table(records: list[Record]) -> list[str]:
    """Markdown: the expert layer with each activation, and the activation's share of it.

    The share by its own time is the steadier one: the two GEMMs alone vary by 1 to 2% from one
    graph to the next, which is about what the fast activation takes.
    """
    if "layer none" not in records[0]:
        return ["Expert layer: not run."]
    lines = [
        "| expert layer with | layer, us | share by its own time | share by difference |",
        "|---|---|---|---|",
    ]
    for key in records[0]:
        if not key.startswith("layer ") or key == "layer none":
            continue
        name = key.removeprefix("layer ")
        total = median(records, lambda r: r[key] * 1e6)  # noqa: B023
        alone = median(records, lambda r: r[f"{name} 8192"] / r[key])  # noqa: B023
        added = median(records, lambda r: 1 - r["layer none"] / r[key])  # noqa: B023
        if total is not None and alone is not None and added is not None:
            lines.append(f"| {name} | {total:.1f} | {alone:.1%} | {added:.1%} |")
    return lines
