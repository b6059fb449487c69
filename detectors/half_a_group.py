"""half-a-group: ranks of a group run on another host, so that who is late cannot be told here."""

from __future__ import annotations

from detectors.moved import alive_with, moved
from detectors.rule import Answer, Rule
from exporters.snapshot import Engine, Evidence, Finding, Snapshot

NAME = "half-a-group"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Ranks without a page here, whose collectives nevertheless end: they run elsewhere. No other
    rule names a straggler from the ranks that are seen."""
    workers = alive_with(engine, "worker")
    seen = {p.rank for p in workers}
    missing = [rank for rank in range(engine.world_size) if rank not in engine.workers()]
    if not workers or not missing:
        return Answer()
    if any(set(o.missing_ranks) & set(missing) for g in engine.groups for o in g.open):
        return Answer()  # they are waited for: that is another fault
    movements = [m for p in workers if (m := moved(p, snapshot)) is not None]
    if not movements:
        return Answer(again=True)
    ended = min(m.by("collectives") for m in movements)
    if ended <= 0:
        return Answer()
    listed = ", ".join(map(str, missing))
    return Answer(
        (
            Finding(
                id=NAME,
                severity="info",
                summary=f"only {len(seen)} of {engine.world_size} ranks have their pages here; "
                f"rank{'s' if len(missing) > 1 else ''} {listed} run elsewhere, and who is late "
                "cannot be told from half of a group",
                engine_id=engine.engine_id,
                evidence=(
                    Evidence(
                        "ended_collectives",
                        float(ended),
                        1.0,
                        "",
                        f"{ended} collectives ended in {movements[0].seconds:.0f} s, which needs "
                        "all ranks",
                    ),
                ),
                confidence=0.9,
            ),
        )
    )


RULE = Rule(NAME, ("pages",), judge)
