"""store-skew on both sides of each of its limits."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import thresholds as t
from detectors.store_skew import RULE, shares
from exporters import reasons
from tests.detectors.pictures import (
    NOW,
    engine,
    group,
    quiet,
    second,
    snapshot,
    stores,
    worker,
)

END = int(NOW)
LOST = t.LOST_WALL_SHARE


def _late(size=4, late=0, lost=0.2, observed=60):
    return group(
        [second(at, size, late, lost_seconds=lost) for at in range(END - observed, END)], size
    )


def _rank0(size=4, count=40, chunks=8):
    """The stock MLA default: rank 0 stores every chunk, the others come with nothing."""
    return {
        r: stores(r, count, chunks=chunks if r == 0 else 0, expected=chunks // size)
        for r in range(size)
    }


def _verdict(operations, waits=None, size=4):
    return RULE(snapshot(engine(size, (waits or _late(size),), operations)))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_one_rank_storing_everything_is_named(size):
    [finding] = _verdict(_rank0(size), size=size).findings
    assert (finding.id, finding.rank, finding.severity) == ("store-skew", 0, "critical")
    evidence = {e.name: e for e in finding.evidence}
    assert evidence["store_ratio"].value == pytest.approx(size)
    assert evidence["store_ratio"].limit == t.SKEW_RATIO
    assert evidence["lost_wall_share"].value == pytest.approx(0.2)


def test_it_is_named_where_the_others_recorded_no_store_at_all():
    operations = {0: stores(0, 40, chunks=8, expected=2)}
    [finding] = _verdict(operations).findings
    assert finding.rank == 0


@pytest.mark.parametrize("mode", ["every rank its own copy", "sharded"])
@pytest.mark.parametrize("prompt_chunks", [1, 3, 8, 64])
def test_healthy_stores_are_silent(mode, prompt_chunks):
    """Even with a rank that is late for another reason, and on prompts shorter than W chunks."""
    share = {r: (prompt_chunks - r + 3) // 4 for r in range(4)}
    operations = {
        r: stores(r, 80, chunks=prompt_chunks if mode != "sharded" else share[r], expected=share[r])
        for r in range(4)
    }
    verdict = _verdict(operations, _late(late=1))
    assert (verdict.findings, verdict.abstained) == ((), "")


@pytest.mark.parametrize(("extra", "fires"), [(0, False), (1, True)])
def test_the_ratio(extra, fires):
    """Rank 0 holds exactly 1.5 times an even share, or a chunk more."""
    chunks = {0: 150 + extra, 1: 84, 2: 83, 3: 83}
    operations = {r: stores(r, 1, chunks=c, expected=100) for r, c in chunks.items()}
    assert bool(_verdict(operations).findings) == fires


@pytest.mark.parametrize(("chunks", "fires"), [(63, False), (64, True)])
def test_the_number_of_chunks(chunks, fires):
    operations = {r: stores(r, 1, chunks=chunks if r == 0 else 0, expected=16) for r in range(4)}
    verdict = _verdict(operations)
    assert bool(verdict.findings) == fires
    assert (verdict.reason == reasons.TOO_FEW) != fires


@pytest.mark.parametrize(
    ("lost", "severity"), [(0.99, None), (1.01, "warning"), (2.01, "critical")]
)
def test_the_wall_lost(lost, severity):
    verdict = _verdict(_rank0(), _late(lost=LOST * lost))
    assert [f.severity for f in verdict.findings] == ([severity] if severity else [])
    assert not verdict.abstained


def test_a_wait_charged_to_another_rank_is_not_the_stores():
    assert not _verdict(_rank0(), _late(late=3)).findings


@pytest.mark.parametrize(
    ("observed", "fires"), [(t.SKEW_MIN_WALL_SECONDS - 1, False), (t.SKEW_MIN_WALL_SECONDS, True)]
)
def test_the_span_observed(observed, fires):
    verdict = _verdict(_rank0(), _late(observed=observed))
    assert bool(verdict.findings) == fires
    assert (verdict.reason == reasons.TOO_FEW) != fires


def test_old_stores_are_outside_the_window():
    old = {r: stores(r, 40, begin=NOW - 90, chunks=8 if r == 0 else 0) for r in range(4)}
    assert not _verdict(old).findings


def test_an_engine_that_neither_stores_nor_waits_is_decided():
    verdict = _verdict({}, group([quiet(at, 4) for at in range(END - 60, END)], 4))
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_since_is_the_first_skewed_store():
    begun = NOW - 30
    healthy = {r: stores(r, 20, begin=NOW - 45, chunks=2) for r in range(4)}
    skewed = {r: stores(r, 60, begin=begun, chunks=8 if r == 0 else 0) for r in range(4)}
    [finding] = _verdict({r: healthy[r] + skewed[r] for r in range(4)}).findings
    assert finding.since_seconds == pytest.approx(30, abs=0.6)


def test_it_abstains_without_a_ranks_page():
    made = engine(4, (_late(),), _rank0())
    made = dataclasses.replace(made, processes=made.processes[:3])
    verdict = RULE(snapshot(made))
    assert (verdict.findings, verdict.reason) == ((), reasons.MISSING_RANK)


def test_it_abstains_where_the_waits_are_unseen():
    async_only = dataclasses.replace(_late(), unseen_reason=reasons.ASYNC_ONLY)
    assert _verdict(_rank0(), async_only).reason == reasons.ASYNC_ONLY
    assert RULE(snapshot(engine(4, (), _rank0()))).reason == reasons.TOO_FEW


def test_loads_and_lookups_are_no_stores():
    loads = {
        r: tuple(dataclasses.replace(op, kind="load") for op in ops) for r, ops in _rank0().items()
    }
    verdict = _verdict(loads)
    assert (verdict.findings, verdict.reason) == ((), reasons.TOO_FEW)


def test_shares_of_an_engine_that_stored_nothing():
    assert [s.stored for s in shares({0: [], 1: []})] == [0.0, 0.0]


def test_one_rank_has_no_skew():
    made = engine(1, (), {}, (worker(0, 1),))
    assert RULE(snapshot(made)).findings == ()
