"""key-namespace-split: two names for one chunk, so that nobody finds what another stored."""

from __future__ import annotations

from collections import Counter

from detectors.rule import Answer, Rule
from exporters.snapshot import Engine, Evidence, Finding, Process, Snapshot

NAME = "key-namespace-split"
# Processes that agree in all of these share a cache, and must agree in their keys.
_SAME = ("model", "chunk_tokens", "world_size", "shard_url")


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """A worker's fingerprint (of the keys of a fixed token list) that differs from the one most
    workers have that share its model, chunk size, world size and shards, of any engine seen."""
    mine = [p for p in engine.workers().values() if _fingerprint(p) and p.liveness != "dead"]
    if not mine:
        return Answer()  # no cache engine is built yet, or left: nothing is named
    everybody = [
        p
        for other in snapshot.engines
        for p in other.workers().values()
        if _fingerprint(p) and p.liveness != "dead"
    ]
    findings = []
    for process in mine:
        # The ranks of one engine must agree whatever shard each of them has.
        peers = [
            p
            for p in everybody
            if p.engine_id == process.engine_id or _shared(p) == _shared(process)
        ]
        names = Counter(map(_fingerprint, peers))
        most = max(names.values(), default=0)
        usual = [name for name, count in names.items() if count == most]
        # Of two that are as common nobody is the usual one: both are named.
        if len(usual) > 1 or _fingerprint(process) not in usual:
            findings.append((process, names))
    if not findings:
        return Answer()
    ranks = sorted(p.rank for p, _ in findings if p.rank is not None)
    return Answer((_finding(engine, ranks, findings[0][0], findings[0][1]),))


def _fingerprint(process: Process) -> str:
    value = process.info.get("key_fingerprint")
    return value if isinstance(value, str) else ""


def _shared(process: Process) -> tuple[str, ...]:
    return tuple(str(process.info.get(name, "")) for name in _SAME)


def _finding(engine: Engine, ranks: list[int], process: Process, names: Counter[str]) -> Finding:
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    is_whole = len(ranks) == len(engine.workers())
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"{'the engine' if is_whole else who} names its chunks otherwise than the others "
        "that share its cache: nobody finds what another stored, and no error says so",
        rank=ranks[0] if len(ranks) == 1 else None,
        engine_id=engine.engine_id,
        evidence=(
            Evidence(
                "namespaces",
                float(len(names)),
                2.0,
                "",
                f"{len(names)} fingerprints where one is shared: "
                + ", ".join(f"{name} in {count}" for name, count in names.most_common())
                + f"; {who} of engine {engine.engine_id}: {_fingerprint(process)}",
            ),
        ),
        confidence=0.95,
        cause="hash-seed",
    )


RULE = Rule(NAME, ("pages",), judge)
