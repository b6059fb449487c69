"""One tick over everything: order, memory of onsets, what is unseen, and a rule that breaks."""

from __future__ import annotations

import dataclasses
import time

import pytest
import redis

from detectors import ALL_RULES
from exporters import reasons
from exporters.evaluator import KEPT_PICTURES, Evaluator, FindingMemory, worst_first
from exporters.snapshot import Finding, ShardQuestion, Verdict
from tests.exporters.lockstep import run
from tests.exporters.page_files import SECOND, PageFile, locked, worker_info
from tests.servers import valkey_server

SIZE = 4


def _finding(name, severity="warning", rank=0, since=1.0, **changes):
    made = Finding(name, severity, "text", rank=rank, since_seconds=since)
    return dataclasses.replace(made, **changes)


def _pages(folder, size=SIZE, collectives=()):
    made = []
    began = time.monotonic_ns() - 60 * SECOND  # all before any of them can have died
    for rank in range(size):
        page = PageFile(
            folder / f"{rank}.page", worker_info(rank, size), ring_records=1024, start_ns=began
        )
        for c in collectives:
            page.record(c.sequence, c.sequence, c.arrive[rank], c.depart[rank], op=c.op)
        made.append(page)
    return made


def _straggling(late, seconds=40):
    """Two collectives a second until now, to which one rank comes 0.3 s late."""
    begin = time.monotonic_ns() - seconds * SECOND
    period = SECOND // 2
    made = []
    for c in run(1, SIZE, 2 * seconds):
        at = begin + c.sequence * period
        arrive = tuple(at + (3 * SECOND // 10 if r == late else r * 1000) for r in range(SIZE))
        depart = tuple(max(arrive) + 1000 + r for r in range(SIZE))
        made.append(dataclasses.replace(c, arrive=arrive, depart=depart))
    return made


def test_one_look_at_rings_that_reach_back_names_the_late_rank(tmp_path):
    pages = _pages(tmp_path, collectives=_straggling(late=2))
    with locked(*(page.path for page in pages)):
        evaluator = Evaluator(tmp_path, (), ALL_RULES)
        evaluation = evaluator.tick()
        evaluator.close()
    assert [(f.id, f.rank) for f in evaluation.findings] == [("straggler-rank", 2)]
    assert evaluation.findings[0].since_seconds == pytest.approx(40, abs=2)
    assert evaluation.snapshot.unseen == ()


def test_a_frozen_and_a_dead_worker(tmp_path):
    pages = _pages(tmp_path)
    with locked(*(page.path for page in pages[1:])):
        pages[3].mark("heartbeat", time.monotonic_ns() - 5 * SECOND)
        evaluation = Evaluator(tmp_path, (), ALL_RULES).tick()
    assert {(f.rank, f.summary.split(":")[0].split()[-1]) for f in evaluation.findings} == {
        (0, "dead"),
        (3, "frozen"),
    }


def test_a_rank_without_a_page_is_unseen(tmp_path):
    pages = _pages(tmp_path)
    pages[1].path.unlink()
    with locked(*(page.path for i, page in enumerate(pages) if i != 1)):
        evaluation = Evaluator(tmp_path, (), ALL_RULES).tick()
    assert evaluation.findings == ()
    [unseen] = evaluation.snapshot.unseen
    assert (unseen.reason, "rank 1 of 4" in unseen.detail) == (reasons.MISSING_RANK, True)


def test_an_engine_that_has_ended_is_said_once(tmp_path):
    _pages(tmp_path)
    evaluation = Evaluator(tmp_path, (), ALL_RULES).tick()
    assert [f.id for f in evaluation.findings] == ["engine-dead"]
    assert [u.reason for u in evaluation.snapshot.unseen] == [reasons.NO_WRITER]


def test_ranks_left_by_an_earlier_larger_run_are_not_of_this_one(tmp_path):
    now = time.monotonic_ns()
    for rank in range(4):
        old = PageFile(
            tmp_path / f"old{rank}.page", worker_info(rank, 4), start_ns=now - 900 * SECOND
        )
        old.mark("heartbeat", now - 600 * SECOND)
    new = [
        PageFile(tmp_path / f"new{r}.page", worker_info(r, 2), start_ns=now - 60 * SECOND)
        for r in range(2)
    ]
    with locked(*(page.path for page in new)):
        evaluation = Evaluator(tmp_path, (), ALL_RULES).tick()
    assert evaluation.findings == ()
    assert [(e.world_size, len(e.processes)) for e in evaluation.snapshot.engines] == [(2, 2)]
    assert evaluation.snapshot.unseen == ()


def test_two_engines_in_one_folder_are_apart(tmp_path):
    for name in ("a", "b"):
        for rank in range(2):
            PageFile(tmp_path / f"{name}{rank}.page", worker_info(rank, 2, engine_id=name))
    engines = Evaluator(tmp_path, (), ALL_RULES).tick().snapshot.engines
    assert [(e.engine_id, len(e.processes)) for e in engines] == [("a", 2), ("b", 2)]


def test_a_missing_folder_is_unseen_and_every_rule_abstains(tmp_path):
    evaluation = Evaluator(tmp_path / "none", (), ALL_RULES).tick()
    assert [u.reason for u in evaluation.snapshot.unseen] == [reasons.MISSING_FOLDER]
    assert all(v.abstained and v.reason for v in evaluation.verdicts)
    assert len(evaluation.verdicts) == len(ALL_RULES)


def test_the_folder_may_come_later(tmp_path):
    evaluator = Evaluator(tmp_path / "later", (), ALL_RULES)
    evaluator.tick()
    (tmp_path / "later").mkdir()
    _pages(tmp_path / "later")
    assert len(evaluator.tick().snapshot.engines) == 1
    evaluator.close()


def test_without_pages_only_shards_are_asked():
    evaluation = Evaluator(None, ["127.0.0.1:1"], ALL_RULES).tick()
    assert [u.reason for u in evaluation.snapshot.unseen] == [reasons.CONNECTION_REFUSED]


class _Silent:
    def questions(self, snapshot):
        return ()


class _Broken(_Silent):
    name = "broken"

    def __call__(self, snapshot):
        raise ZeroDivisionError("in the rule")


class _Fires(_Silent):
    name = "fires"

    def __call__(self, snapshot):
        return Verdict("fires", (_finding("fires"),))


def test_a_rule_that_breaks_costs_no_other_its_answer(tmp_path, caplog):
    evaluation = Evaluator(tmp_path, (), (_Broken(), _Fires())).tick()
    assert [f.id for f in evaluation.findings] == ["fires"]
    assert evaluation.verdicts[0].reason == reasons.RULE_FAILED
    assert "ZeroDivisionError" in evaluation.verdicts[0].abstained


ORDER = {"cause": 0, "symptom": 1}


def test_worst_first_and_a_cause_before_its_symptom():
    findings = [
        _finding("symptom", "warning", rank=3),
        _finding("symptom", "critical", rank=1),
        _finding("cause", "warning", rank=1),
        _finding("cause", "warning", rank=2),
    ]
    ordered = [(f.id, f.rank) for f in worst_first(findings, ORDER)]
    assert ordered == [("cause", 1), ("symptom", 1), ("cause", 2), ("symptom", 3)]


def test_the_oldest_first_among_equals():
    findings = [_finding("cause", rank=r, since=float(r)) for r in range(3)]
    assert [f.rank for f in worst_first(findings, ORDER)] == [2, 1, 0]


def test_a_finding_keeps_the_earliest_onset_that_was_known():
    memory = FindingMemory()
    assert memory.date([_finding("a", since=5.0)], 100.0)[0].since_seconds == 5.0
    assert memory.date([_finding("a", since=5.5)], 130.0)[0].since_seconds == pytest.approx(35.0)


def test_a_finding_that_pauses_is_the_same_and_one_that_ends_begins_anew():
    memory = FindingMemory()
    memory.date([_finding("a", since=5.0)], 100.0)
    memory.date([], 105.0)
    assert memory.date([_finding("a", since=1.0)], 109.0)[0].since_seconds == pytest.approx(14.0)
    memory.date([], 120.0)
    assert memory.date([_finding("a", since=1.0)], 121.0)[0].since_seconds == 1.0


def test_onsets_are_kept_apart_by_rank():
    memory = FindingMemory()
    memory.date([_finding("a", rank=0, since=50.0)], 100.0)
    assert memory.date([_finding("a", rank=1, since=1.0)], 101.0)[0].since_seconds == 1.0


class _Suspicious(_Silent):
    """Wants another look until its third picture."""

    name = "suspicious"

    def __call__(self, snapshot):
        seen = len(snapshot.earlier) + 1
        findings = (_finding("suspicious"),) if seen == 3 else ()
        return Verdict("suspicious", findings, again=seen < self.wants)

    wants = 3


def test_a_look_takes_more_pictures_only_where_a_rule_asks(tmp_path):
    began = time.monotonic()
    evaluation = Evaluator(tmp_path, (), (_Fires(), _Suspicious())).look()
    assert [f.id for f in evaluation.findings] == ["fires", "suspicious"]
    assert 2.0 <= time.monotonic() - began < 3.5
    began = time.monotonic()
    Evaluator(tmp_path, (), (_Fires(),)).look()
    assert time.monotonic() - began < 0.9


def test_a_look_ends_though_a_rule_would_go_on(tmp_path):
    rule = _Suspicious()
    rule.wants = 99
    began = time.monotonic()
    assert Evaluator(tmp_path, (), (rule,)).look().verdicts[0].again
    assert time.monotonic() - began < 3.5


def test_earlier_pictures_are_kept_small_and_few(tmp_path):
    pages = _pages(tmp_path, collectives=_straggling(late=2))
    pages[0].operation(1)
    with locked(*(page.path for page in pages)):
        evaluator = Evaluator(tmp_path, (), ())
        pictures = [evaluator.tick().snapshot for _ in range(KEPT_PICTURES + 3)]
        evaluator.close()
    last = pictures[-1]
    assert [p.now_seconds for p in last.earlier] == [p.now_seconds for p in pictures[2:-1]]
    assert all(not p.earlier for p in last.earlier)
    [engine] = last.earlier[0].engines
    assert engine.groups == () and len(engine.processes) == SIZE
    assert all(not p.operations for p in engine.processes)
    assert last.engines[0].groups and any(p.operations for p in last.engines[0].processes)


def test_each_process_knows_its_shard(tmp_path):
    for rank in range(2):
        info = worker_info(rank, 2, shard_url=f"resp://v-{rank}:6379")
        PageFile(tmp_path / f"{rank}.page", info)
    evaluator = Evaluator(tmp_path, ["redis://v-1:6379"], ())
    [engine] = evaluator.tick().snapshot.engines
    evaluator.close()
    assert [p.shard for p in engine.processes] == ["", "redis://v-1:6379"]


class _Asks(_Silent):
    name = "asks"

    def questions(self, snapshot):
        raise ZeroDivisionError

    def __call__(self, snapshot):
        return Verdict("asks")


def test_a_shard_that_is_asked_of_nobody_and_used_is_named(tmp_path):
    pages = []
    for rank in range(3):
        url = f"resp://user:secret@v-{rank}:6379"
        pages.append(PageFile(tmp_path / f"{rank}.page", worker_info(rank, 3, shard_url=url)))
    with locked(*(page.path for page in pages)):
        evaluator = Evaluator(tmp_path, ("redis://v-0.cache.svc:6379", "v-9:6379"), ())
        unseen = [u for u in evaluator.tick().snapshot.unseen if u.reason == reasons.OTHER_SHARD]
        evaluator.close()
        alone = Evaluator(tmp_path, (), ())
        assert not any(u.reason == reasons.OTHER_SHARD for u in alone.tick().snapshot.unseen)
        alone.close()
    assert [u.source for u in unseen] == [f"engine engine-a rank {rank}" for rank in (1, 2)]
    assert "resp://v-1:6379" in unseen[0].detail
    assert "secret" not in str(unseen)


def test_a_rule_that_fails_to_ask_costs_nothing(tmp_path, caplog):
    assert Evaluator(tmp_path, (), (_Asks(), _Fires())).tick().findings


class _Wonders(_Silent):
    """Asks after a key and tells what it heard."""

    name = "wonders"

    def __init__(self, url):
        self._url = url

    def questions(self, snapshot):
        return (ShardQuestion(self._url, (), ("k",)),)

    def __call__(self, snapshot):
        heard = dict(snapshot.shards[0].keys)
        return Verdict("wonders", (_finding("wonders"),) if heard == {"k": True} else ())


def test_what_a_rule_asks_is_answered_in_the_next_picture(tmp_path):
    with valkey_server() as port, redis.Redis(port=port) as client:
        client.set("k", "v")
        url = f"redis://127.0.0.1:{port}"
        evaluator = Evaluator(tmp_path, [url], (_Wonders(url),))
        assert evaluator.tick().findings == ()
        assert [f.id for f in evaluator.tick().findings] == ["wonders"]
        evaluator.close()
