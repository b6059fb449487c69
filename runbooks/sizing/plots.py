"""Draws a plan: what p50 and p99 do as rho rises, and each number of shards beside break-even."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from runbooks.sizing.inputs import Value
from runbooks.sizing.plan import Plan, service
from runbooks.sizing.queue import MODES, Mode, Stream, runs, spread

_RHOS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
_SEEDS: Final = 15
_COLOURS: Final = {"in-step": "#c25e00", "background": "#0b62a8"}
_LINE: Final = "#b3261e"


def draw(plan: Plan, path: Path) -> None:
    """Write one picture with two panels. Raises ModuleNotFoundError (matplotlib), OSError."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "stallscope"
    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    bars, curves = figure.subplots(1, 2, width_ratios=(2, 3))
    _bandwidth(bars, plan)
    _latency(curves, plan)
    figure.savefig(path, dpi=110)


def _bandwidth(axes: Any, plan: Plan) -> None:
    names = [str(row.shards) for row in plan.rows]
    values = [row.bytes_per_second / 1e9 for row in plan.rows]
    colours = ["#00795c" if row.pays_off else "#aab2bb" for row in plan.rows]
    axes.bar(names, values, color=colours)
    for i, (row, value) in enumerate(zip(plan.rows, values, strict=True)):
        axes.text(i, value, f"rho {row.rho:.2f}", ha="center", va="bottom", fontsize=8)
    line = plan.break_even_bytes_per_second / 1e9
    axes.axhline(line, color=_LINE, linestyle="--", linewidth=1.2)
    axes.text(-0.4, line, f"break-even {line:.2f}", color=_LINE, fontsize=8, va="bottom")
    axes.set_xlabel("shards")
    axes.set_ylabel("GB/s to one prompt")
    axes.set_title("A hit pays off above break-even", fontsize=10)
    axes.margins(y=0.12)
    _plain(axes)


def _latency(axes: Any, plan: Plan) -> None:
    asked, load_seconds, _ = service(plan.inputs, plan.chosen.shards)
    per_request = load_seconds + asked.engine_seconds
    count = int(plan.inputs["requests"].value)
    for mode in MODES:
        middle, high = _curve(mode, plan.inputs, plan.chosen.shards, count, per_request)
        axes.plot(_RHOS, middle, color=_COLOURS[mode], label=f"{mode}, p50")
        axes.plot(_RHOS, high, color=_COLOURS[mode], linestyle="--", label=f"{mode}, p99")
    axes.axhline(plan.recompute_seconds, color="#59626c", linestyle=":", linewidth=1)
    axes.text(_RHOS[0], plan.recompute_seconds, "computing it", fontsize=8, va="bottom")
    if _RHOS[0] <= plan.chosen.rho <= _RHOS[-1]:
        axes.axvline(plan.chosen.rho, color=_LINE, linestyle=":", linewidth=1)
        axes.text(plan.chosen.rho, axes.get_ylim()[1], "now ", fontsize=8, ha="right", va="top")
    axes.set_yscale("log")
    axes.set_xlabel(f"rho of {plan.chosen.shards} shard{'s' * (plan.chosen.shards > 1)}")
    axes.set_ylabel("seconds")
    axes.set_title(f"Latency of {count:,} hits, by how fast they come", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    _plain(axes)


def _curve(
    mode: Mode, inputs: dict[str, Value] | Any, shards: int, count: int, per_request: float
) -> tuple[list[float], list[float]]:
    asked, _, _ = service(inputs, shards)
    middle, high = [], []
    for rho in _RHOS:
        found = runs(mode, Stream(count, count * per_request / rho), asked, _SEEDS)
        middle.append(spread(found, lambda run: run.percentile(0.5)).median)
        high.append(spread(found, lambda run: run.percentile(0.99)).median)
    return middle, high


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
