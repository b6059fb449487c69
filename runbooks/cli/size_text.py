"""The plan of `stallscope size` for a person: the answer, its inputs, a row a shard count."""

from __future__ import annotations

from typing import Final

from detectors import thresholds
from runbooks.cli.terminal import Style
from runbooks.sizing.inputs import BY_FLAG
from runbooks.sizing.plan import Plan, Row
from runbooks.sizing.queue import Spread

_GIGA: Final = 1e9
_INDENT: Final = "  "


def render(plan: Plan, style: Style) -> str:
    """Lines of at most the style's width, but for a source that is longer."""
    lines = [*_answer(plan, style), "", style.paint("bold", "inputs")]
    for flag, value in plan.inputs.items():
        field = BY_FLAG[flag]
        figure = f"{value.value:.6g} {field.unit}".strip()
        lines.append(f"  {field.says:<31}{figure:<16}  {value.source}")
    lines += ["", style.paint("bold", "by number of shards"), *_table(plan)]
    lines += ["", *_notes(plan, style)]
    return "\n".join(lines)


def _answer(plan: Plan, style: Style) -> list[str]:
    chosen, line = plan.chosen, plan.break_even_bytes_per_second
    times = chosen.bytes_per_second / line
    yes = (
        style.paint("green", "PAYS OFF") if chosen.pays_off else style.paint("red", "NOT WORTH IT")
    )
    verb = (
        "loads faster than it is computed" if chosen.pays_off else "is computed faster than loaded"
    )
    found = style.wrap(
        f"a hit {verb}: {_shards(chosen.shards)} deliver{'s' if chosen.shards == 1 else ''} "
        f"{_gb(chosen.bytes_per_second)} to one prompt, {_figure(times)} times the break-even of "
        f"{_gb(line)} (s R = {plan.token_bytes / 1e3:.1f} kB x "
        f"{plan.inputs['prefill-rate'].value:,.0f} tokens/s)",
        _INDENT,
    )
    calm = f"{_INDENT}{_queue_says(chosen)}"
    lines = [yes, *found, *style.wrap(calm.strip(), _INDENT)]
    lines += style.wrap(_advice(plan), _INDENT)
    return lines


def _queue_says(row: Row) -> str:
    if row.rho >= 1:
        return (
            f"rho is {row.rho:.2f} with loads inside the step: no steady state, the queue grows "
            "for as long as the load lasts"
        )
    level = "above" if row.rho > thresholds.RHO_WARNING else "below"
    return (
        f"rho is {row.rho:.2f} with loads inside the step, {level} the "
        f"{thresholds.RHO_WARNING:g} from which stallscope warns"
    )


def _advice(plan: Plan) -> str:
    def least(shards: int | None, what: str) -> str:
        ranks = int(plan.inputs["ranks"].value)
        if shards is None:
            return f"no number of shards up to the {ranks} ranks {what}"
        return f"{_shards(shards)} {what if shards != 1 else what.replace('keep', 'keeps')}"

    paying = least(plan.least_shards_to_pay_off, "would pay off")
    calm = least(plan.least_shards_for_rho, f"keep rho at or under {thresholds.RHO_WARNING:g}")
    return f"{paying}; {calm}"


def _table(plan: Plan) -> list[str]:
    head = (
        "N",
        "GB/s",
        "load",
        "pays",
        "rho",
        "in-step p50",
        "p99",
        "backgr. p50",
        "p99",
        "gave up",
    )
    rows = [head]
    for row in plan.rows:
        step, back = row.queues["in-step"], row.queues["background"]
        mark = "*" if row.shards == plan.chosen.shards else ""
        rows.append(
            (
                f"{mark}{row.shards}",
                f"{row.bytes_per_second / _GIGA:.2f}",
                _time(row.load_seconds),
                "yes" if row.pays_off else "no",
                f"{row.rho:.2f}",
                _time(step.p50_seconds.median),
                _time(step.p99_seconds.median),
                _time(back.p50_seconds.median),
                _time(back.p99_seconds.median),
                f"{back.gave_up_share.median:.0%}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [
        _INDENT + " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _notes(plan: Plan, style: Style) -> list[str]:
    step = plan.chosen.queues["in-step"]
    count = int(plan.inputs["requests"].value)
    notes = [
        f"* what there is now. p50 and p99 are medians of {plan.seeds} simulated runs of {count:,} "
        f"hits; here the in-step p99 is {_range(step.p99_seconds)} in eight runs of ten, with "
        f"{_range(step.most_in_flight, plain=True)} requests in flight at most",
        f"computing the prompt takes {_time(plan.recompute_seconds)}; times above are of loads and "
        "their queue, with the engine's own work only where --engine-seconds says it",
        *sorted({f"{row.shards} shards: {row.basis}" for row in plan.rows if "post" in row.basis}),
    ]
    return [line for note in notes for line in style.wrap(note, _INDENT, first=_INDENT)]


def _range(figure: Spread, plain: bool = False) -> str:
    if plain:
        return f"{figure.low:.0f} to {figure.high:.0f}"
    return f"{_time(figure.low)} to {_time(figure.high)}"


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"


def _gb(per_second: float) -> str:
    return f"{_figure(per_second / _GIGA)} GB/s"


def _figure(value: float) -> str:
    """Three figures, without an exponent where one can do without: 0.00678, 2.57, 1,310."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"
    return f"{seconds:.1f} s" if seconds < 1000 else f"{seconds:.0f} s"
