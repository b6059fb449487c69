"""The live view's table: each rank's state, what it waited, what it made others wait."""

from __future__ import annotations

from typing import Final

from exporters.snapshot import Engine, Process, Snapshot
from runbooks.cli.terminal import Style

WINDOW_SECONDS: Final = 30
_STATES: Final = {"alive": "green", "frozen": "red", "dead": "red"}
_BAR_COLUMNS: Final = 12


def ranks_text(snapshot: Snapshot, style: Style) -> str:
    """One table an engine, ranks in the order of the wait they cause; "" without any engine."""
    return "\n\n".join(_table(engine, snapshot, style) for engine in snapshot.engines)


def _table(engine: Engine, snapshot: Snapshot, style: Style) -> str:
    waited, caused = _wait_shares(engine, snapshot.now_seconds)
    workers = engine.workers()
    ranks = sorted({*range(engine.world_size), *workers}, key=lambda r: (-caused.get(r, 0.0), r))
    head = f"{'rank':>4}  {'pid':>7}  {'state':<7} {'waits':>6}  {'makes others wait':<20} stored"
    lines = [style.paint("dim", head)]
    lines += [_row(rank, workers.get(rank), waited, caused, style) for rank in ranks]
    return "\n".join(lines)


def _row(
    rank: int,
    worker: Process | None,
    waited: dict[int, float],
    caused: dict[int, float],
    style: Style,
) -> str:
    if worker is None:
        return f"{rank:>4}  {'':>7}  {style.paint('yellow', 'no page')}"
    state = style.paint(_STATES[worker.liveness], f"{worker.liveness:<7}")
    share = caused.get(rank, 0.0)
    bar = "#" * min(_BAR_COLUMNS, round(share * _BAR_COLUMNS))
    stored = worker.counters.get("store_bytes", 0) / 1e9
    return (
        f"{rank:>4}  {worker.pid:>7}  {state} {waited.get(rank, 0.0):>6.1%}"
        f"  {share:>6.1%} {bar:<{_BAR_COLUMNS}}  {stored:.2f} GB"
    )


def _wait_shares(engine: Engine, now_seconds: float) -> tuple[dict[int, float], dict[int, float]]:
    """Per rank over the last window, or over what of it was observed: the share of wall it waited,
    and the mean share of wall that each other rank waited for it."""
    waited: dict[int, float] = {}
    caused: dict[int, float] = {}
    oldest = now_seconds - WINDOW_SECONDS
    for group in engine.groups:
        others = max(1, len(group.ranks) - 1)
        recent = [entry for entry in group.seconds if entry.second >= oldest]
        wall_seconds = max(1, len(recent))  # one entry for each second observed, idle ones too
        for entry in recent:
            for i, rank in enumerate(group.ranks):
                wait = entry.wait_seconds[i] / wall_seconds
                waited[rank] = waited.get(rank, 0.0) + wait
                charge = entry.charged_seconds[i] / wall_seconds / others
                caused[rank] = caused.get(rank, 0.0) + charge
    return waited, caused
