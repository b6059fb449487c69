"""The main job in one command: a healthy engine, then two faults, each diagnosed from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any, Final

from lab import incidents, report, run
from lab.processes import StopSignals
from lab.progress import ProgressView
from lab.settings import Settings

# Long enough for the rules to decide: a healthy run that no rule could judge has shown nothing.
RUNS: Final = (("", 36.0), ("rank0-store", 20.0), ("slow-rank", 38.0))
TRIES: Final = 4  # a lost completion is repeated up to three times
_DIAGNOSE_SECONDS: Final = 20.0


def execute(base: Settings, stop: StopSignals) -> list[dict[str, Any]]:
    """Each run's name, what must be named, what diagnose named, and whether that is right."""
    return [
        _try(replace(base, incident=name, seconds=seconds), stop, number + 1)
        for number, (name, seconds) in enumerate(RUNS)
    ]


def _try(settings: Settings, stop: StopSignals, number: int) -> dict[str, Any]:
    name = settings.incident or "healthy"
    title = f"[{number}/{len(RUNS)}] {name}"
    for left in range(TRIES - 1, -1, -1):
        try:
            with ProgressView(settings, title) as view:
                result, diagnosis = _once(settings, stop, view, is_last=not left)
        except StockFault as fault:
            print(f"{title}: {fault}; running it again", file=sys.stderr, flush=True)
            continue
        return _judge(settings, result, diagnosis)
    raise AssertionError("the last try returns")


class StockFault(Exception):
    """The stock client has shown its own fault; what follows would be about that one."""


def _once(
    settings: Settings, stop: StopSignals, view: ProgressView, *, is_last: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run's report and what diagnose said at its end."""
    diagnosis: dict[str, Any] = {}

    def watch(progress: run.Progress) -> None:
        view.show(progress)
        if progress.begun.losses and not is_last:
            rank, _ = progress.begun.losses[0]
            raise StockFault(f"the stock client lost a completion by itself on rank {rank}")

    outcome = run.execute(settings, stop, watch, at_end=lambda p: diagnosis.update(_diagnose(p)))
    result = report.build(outcome)
    if result["stock_faults"]["stalled_steps"] and not is_last:
        raise StockFault(
            "the stock client lost a completion by itself, inside a load, where nothing times out"
        )
    return result, diagnosis


def _diagnose(progress: run.Progress) -> dict[str, Any]:
    """What `stallscope diagnose` says: its own process, given the pages and the URLs alone."""
    command = [sys.executable, "-m", "runbooks.cli.main", "diagnose", "--json"]
    command += ["--from", progress.pages_folder]
    for url in progress.shard_urls:
        command += ["--valkey", url]
    begun = time.monotonic()
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DIAGNOSE_SECONDS,
            check=False,
            start_new_session=True,
        )
        said: dict[str, Any] = json.loads(answer.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise run.RunError(f"diagnose gave no answer: {error}") from None
    return {**said, "seconds": time.monotonic() - begun, "exit_code": answer.returncode}


def _judge(settings: Settings, result: dict[str, Any], diagnosis: dict[str, Any]) -> dict[str, Any]:
    incident = incidents.get(settings.incident)
    findings = [(f["id"], f["rank"]) for f in diagnosis["findings"]]
    if incident is None:
        expected: list[tuple[str, int | None]] = []
        # Silence is an answer only where every rule could judge.
        right = not findings and not diagnosis["unseen"]
    else:
        expected = [(incident.finding, incident.rank(settings))]
        right = findings[:1] == expected
    return {
        "run": settings.incident or "healthy",
        "expected": expected,
        "findings": findings,
        "right": right and result["bytes_equal"],
        "diagnosis": diagnosis,
        "report": result,
    }


def render(results: list[dict[str, Any]]) -> str:
    """A row a run, then what diagnose said of each fault."""
    lines = [f"  {'run':<12}  TTFT p50   {'must be named':<24}  {'diagnose named':<24}  verdict"]
    for row in results:
        ttft = row["report"]["requests"]["ttft_seconds"]["p50"]
        lines.append(
            f"  {row['run']:<12}  {ttft or 0:>6.2f} s   {_names(row['expected']):<24}  "
            f"{_names(row['findings']):<24}  {'right' if row['right'] else 'WRONG'}"
        )
    for row in results:
        lines += ["", f"{row['run']}:"]
        lines += [f"  {f['severity']}: {f['summary']}" for f in row["diagnosis"]["findings"]]
        lines += [
            f"    evidence: {item if isinstance(item, str) else item.get('text', item)}"
            for f in row["diagnosis"]["findings"]
            for item in f["evidence"]
        ]
        lines += [f"    next: stallscope runbook {f['id']}" for f in row["diagnosis"]["findings"]]
        if not row["diagnosis"]["findings"]:
            lines.append("  nothing found, and everything asked for was seen")
        if not row["report"]["bytes_equal"]:
            lines.append("  WRONG: loaded bytes differ from what was stored")
        if any(row["report"]["stock_faults"].values()):
            lines.append(f"  stock fault: {stock_faults(row['report'])}")
    return "\n".join(lines)


def stock_faults(result: dict[str, Any]) -> str:
    """The stock client's own losses in a run, for a person."""
    faults = result["stock_faults"]
    return (
        f"{faults['lookup_timeouts']} lookups waited out their 3 s timeout, "
        f"{faults['stalled_steps']} steps never ended"
    )


def _names(findings: list[tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} rank {rank}" for name, rank in findings) or "nothing"
