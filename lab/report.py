"""What a run amounts to: the JSON of schema 1 and the figures of the short table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lab import incidents
from lab.run import Outcome
from lab.stamps import StampedWait, join
from runbooks.report import Asked, make_report

SCHEMA: Final = 1
STATED: Final = (
    "prefill_rate",
    "copy_rate",
    "tokens_per_step",
    "time_scale",
    "collectives_per_step",
    "chunk_bytes",
    "l1_bytes",
    "shard_bytes",
    "plain_scheduling",
    "resp_threads",
    "async_loading",
    "hit_rate",
    "request_rate",
    "requests_file",
    "seed",
    "seconds",
    "lmcache",
)

# What Worker.gather enters, by the name that the pages give it.
STEP_COLLECTIVE: Final = "all_gather"


def build(outcome: Outcome) -> dict[str, Any]:
    """The report as JSON values. Times are seconds; shares are of one."""
    settings, scheduler = outcome.settings, outcome.scheduler
    requests: list[dict[str, Any]] = scheduler["requests"]
    rows = [_request(row) for row in requests]
    stamped = join(outcome.arrived_ns)
    incident = incidents.get(settings.incident)
    asked = Asked(Path(outcome.pages_folder), tuple(outcome.shard_urls))
    stated = {name: getattr(settings, name) for name in STATED}
    stated["prefill_rate"] = settings.scaled_prefill_rate
    stated["request_rate"] = settings.scaled_request_rate
    stated["copy_rate"] = settings.scaled_copy_rate
    return {
        "schema": SCHEMA,
        "incident": settings.incident or None,
        "engine": settings.engine,
        "ranks": settings.ranks,
        "shards": settings.shards,
        "shard_urls": outcome.shard_urls,
        "requests": {
            "count": len(rows),
            "unfinished": scheduler["unfinished"],
            "unfinished_arrival_seconds": scheduler["unfinished_arrival_seconds"],
            "ttft_seconds": _quantiles([row["ttft_seconds"] for row in rows]),
            **{
                f"{part}_seconds": _quantiles([row[f"{part}_seconds"] for row in rows])
                for part in ("queue", "lookup", "load", "compute")
            },
            "source": {
                f"{name}_tokens": sum(row["source"][name] for row in rows)
                for name in ("l1", "l2", "compute")
            },
            "each": rows,
        },
        "bytes_equal": bytes_equal(requests) and not scheduler["stalled_steps"],
        "per_rank": [_rank(outcome, stamped, rank) for rank in range(settings.ranks)],
        "findings": [_finding(outcome, finding) for finding in outcome.evaluation.findings],
        "named_after_seconds": [
            {"id": name, "rank": rank, "seconds": seconds}
            for (name, rank), seconds in outcome.named_after_seconds.items()
        ],
        "unseen": [item.detail for item in make_report(outcome.evaluation, asked).unseen],
        "rules": {
            verdict.rule: {
                "evaluable_ticks": outcome.decided[verdict.rule],
                "ticks": len(outcome.moments),
                "undecided": verdict.abstained,
            }
            for verdict in outcome.evaluation.verdicts
        },
        "expected": None
        if incident is None
        else {
            "finding": incident.finding,
            "cause": incident.cause,
            "rank": incident.rank(settings),
            "shard": outcome.shard_urls[incident.shard(settings)] if incident.is_at_shard else None,
        },
        "incident_seconds": outcome.begun.incident_seconds,
        "stock_faults": {
            "lost_completions": len(outcome.begun.losses),
            "lookup_timeouts": scheduler["lookup_timeouts"],
            "stalled_steps": scheduler["stalled_steps"],
        },
        "lookups": scheduler["lookups"],
        "steps": scheduler["steps"],
        "collectives_stamped": stamped.collectives,
        "busy_share": scheduler["busy_seconds"] / outcome.wall_seconds,
        "wall_seconds": outcome.wall_seconds,
        "stated": stated,
    }


def bytes_equal(requests: Sequence[dict[str, Any]]) -> bool:
    """True only if something was loaded and every load on every rank brought its whole prefix.

    Each rank compared each loaded chunk with what its tokens must have; a run in which nothing
    was loaded has shown nothing.
    """
    loaded_tokens = 0
    for row in requests:
        if not row["bytes_equal"] or any(n != row["hit_tokens"] for n in row["loaded_tokens"]):
            return False
        loaded_tokens += row["hit_tokens"]
    return loaded_tokens > 0


def is_wrong(report: dict[str, Any]) -> bool:
    """Whether something was loaded and was not what it should be."""
    source = report["requests"]["source"]
    loaded = source["l1_tokens"] + source["l2_tokens"] > 0
    failed = any(not row["bytes_equal"] for row in report["requests"]["each"])
    stalled = report["stock_faults"]["stalled_steps"] > 0
    return (loaded or failed) and not stalled and not report["bytes_equal"]


def _request(row: dict[str, Any]) -> dict[str, Any]:
    length = row["request"]["length_tokens"]
    return {
        "id": row["request"]["id"],
        "tokens": length,
        "arrival_seconds": row["request"]["arrival_seconds"],
        "queue_seconds": row["scheduled_seconds"] - row["arrived_seconds"] - row["lookup_seconds"],
        "lookup_seconds": row["lookup_seconds"],
        "load_seconds": row["load_seconds"],
        "compute_seconds": row["compute_seconds"],
        "ttft_seconds": row["finished_seconds"] - row["arrived_seconds"],
        "source": {
            "l1": row["l1_tokens"],
            "l2": row["l2_tokens"],
            "compute": row["computed_tokens"],
        },
        "bytes_equal": row["bytes_equal"],
    }


def _rank(outcome: Outcome, stamped: StampedWait, rank: int) -> dict[str, Any]:
    """One rank: waits and bytes as the pages show them, and the lab's own stamps beside them.

    Both waits are those of the steps' all-gathers: the lab stamps no other collective.
    """
    wait = charged = 0.0
    counters: dict[str, int] = {}
    for engine in outcome.evaluation.snapshot.engines:
        process = engine.workers().get(rank)
        counters = dict(process.counters) if process else counters
        for group in engine.groups:
            if rank not in group.ranks:
                continue
            index = group.ranks.index(rank)
            for total in group.totals:
                if total.op == STEP_COLLECTIVE:
                    wait += total.wait_seconds[index]
                    charged += total.charged_seconds[index]
    count = max(stamped.collectives, 1)
    return {
        "rank": rank,
        "wait_seconds": wait,
        "store_bytes": counters.get("store_bytes", 0),
        "calls": {
            name: counters.get(f"{name}_calls", 0) for name in ("store", "load", "lookup", "client")
        },
        "load_bytes": counters.get("load_l1_bytes", 0) + counters.get("load_l2_bytes", 0),
        "charged_seconds": charged,
        "stamped_wait_seconds": stamped.wait_seconds[rank],
        "stamped_charged_seconds": stamped.charged_seconds[rank],
        "stamped_last_share": stamped.last_count[rank] / count,
    }


def _finding(outcome: Outcome, finding: Any) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "rank": finding.rank,
        "shard": finding.shard,
        "since_seconds": finding.since_seconds,
        "cause": finding.cause,
        "summary": finding.summary,
        "evidence": [asdict(item) for item in finding.evidence],
        "confidence": finding.confidence,
        "named_after_seconds": outcome.named_after_seconds.get((finding.id, finding.rank)),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Nearest-rank p50 and p99; None where there is nothing."""
    if not values:
        return {"p50": None, "p99": None}
    ordered = sorted(values)
    return {
        name: ordered[max(0, math.ceil(share * len(ordered)) - 1)]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
