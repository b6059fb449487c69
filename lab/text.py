"""The short table that a run ends with."""

from __future__ import annotations

from typing import Any


def render(report: dict[str, Any]) -> str:
    """The report for a person, 80 columns wide."""
    stated, requests = report["stated"], report["requests"]
    ttft, source = requests["ttft_seconds"], requests["source"]
    tokens = sum(source.values()) or 1
    lines = [
        f"{report['incident'] or 'healthy'}, engine {report['engine']} (LMCache "
        f"{stated['lmcache']}), {report['ranks']} ranks, {report['shards']} Valkey",
        f"  prefill {stated['prefill_rate']:,.0f} tokens/s, copy "
        f"{stated['copy_rate'] / 1e9:.1f} GB/s, {stated['tokens_per_step']} tokens a step,",
        f"  time scale {stated['time_scale']:g}, {stated['chunk_bytes'] >> 10} KiB a chunk, "
        f"seed {stated['seed']}",
        "",
        f"  requests  {requests['count']} done, {requests['unfinished']} unfinished; "
        f"busy {report['busy_share']:.0%} of {report['wall_seconds']:.1f} s",
        f"  TTFT      p50 {_seconds(ttft['p50'])}, p99 {_seconds(ttft['p99'])}",
        "  p50       "
        + ", ".join(
            f"{part} {_seconds(requests[f'{part}_seconds']['p50'])}"
            for part in ("queue", "lookup", "load", "compute")
        ),
        "  KV from   "
        + ", ".join(
            f"{where} {source[f'{name}_tokens'] / tokens:.0%}"
            for name, where in (("l1", "L1"), ("l2", "L2"), ("compute", "compute"))
        ),
        f"  bytes     {_bytes_line(report)}",
        "",
        "  rank   waited s   charged s   last at   stored MB   loaded MB",
    ]
    lines += [
        f"  {row['rank']:>4}   {row['wait_seconds']:>8.2f}   {row['charged_seconds']:>9.2f}"
        f"   {row['stamped_last_share']:>7.0%}   {row['store_bytes'] / 1e6:>9.1f}"
        f"   {row['load_bytes'] / 1e6:>9.1f}"
        for row in report["per_rank"]
    ]
    lines.append("")
    lines += stock_faults(report)
    lines += [_finding_line(finding) for finding in report["findings"]]
    if not report["findings"]:
        lines.append("  nothing found" + (", but not all was seen:" if report["unseen"] else ""))
    lines += [f"  unseen: {detail}" for detail in report["unseen"]]
    return "\n".join(lines)


def stock_faults(report: dict[str, Any]) -> list[str]:
    """What the engine suffered, and whether of itself or of the incident."""
    faults, began = report["stock_faults"], report["incident_seconds"]
    lines = []
    if report["incident"] and began is None:
        lines.append(
            f"  {report['incident']} never began: it waits for a lookup or a load of some chunks "
            "from the shard; run for longer, or with more requests"
        )
    elif began:
        lines.append(f"  {report['incident']} began after {began:.1f} s")
    if faults["lost_completions"]:
        lines.append(f"  stock fault: {faults['lost_completions']} completions lost by the client")
    why = f"after {report['incident']}" if began is not None else "stock fault"
    if timeouts := faults["lookup_timeouts"]:
        lines.append(
            f"  {why}: {timeouts} of {report['lookups']} lookups waited out the 3 s timeout"
        )
    if faults["stalled_steps"]:
        lines.append(f"  {why}: a step never ended, in a call without a timeout")
    return lines


def _bytes_line(report: dict[str, Any]) -> str:
    if report["bytes_equal"]:
        return "every loaded byte right on every rank"
    source = report["requests"]["source"]
    if report["stock_faults"]["stalled_steps"]:
        return "a load never ended"
    if source["l1_tokens"] + source["l2_tokens"] == 0:
        return "nothing was loaded, so nothing is shown"
    return "WRONG: a load was short or its bytes differ"


def _finding_line(finding: dict[str, Any]) -> str:
    named = finding["named_after_seconds"]
    when = f", first named after {named:.0f} s" if named is not None else ""
    return f"  {finding['severity']}: {finding['id']}: {finding['summary']}{when}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
