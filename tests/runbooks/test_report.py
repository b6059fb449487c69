"""A report from evaluations made by hand: exit codes, JSON, and what a person reads."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from exporters import reasons
from exporters.snapshot import (
    Engine,
    Evaluation,
    Evidence,
    Finding,
    Group,
    OpenCollective,
    Process,
    Shard,
    Snapshot,
    Unseen,
    Verdict,
)
from runbooks.cli import exit_codes
from runbooks.cli.findings_text import duration, report_text
from runbooks.cli.terminal import Style
from runbooks.report import Asked, make_report

PLAIN = Style(width=80, colour=False)
ASKED = Asked(Path("/dev/shm/pages"), ())
GONE = Unseen("c.page", reasons.TRUNCATED, "c.page: cut short", "restart it")
LATE = Finding(
    id="straggler-rank",
    severity="critical",
    summary="Rank 1 comes last to most collectives and the other 3 ranks wait for it.",
    rank=1,
    engine_id="a",
    since_seconds=41.0,
    evidence=(Evidence("last_share", 0.97, 0.6, "ratio", "last in 97% of them (limit 60%)"),),
)


def _process(rank: int, engine_id: str = "a") -> Process:
    return Process(
        page=f"{rank}.page",
        pid=100 + rank,
        engine_id=engine_id,
        roles=("worker",),
        rank=rank,
        world_size=4,
        incarnation=1,
        liveness="alive",
        heartbeat_age_seconds=0.1,
        started_seconds=0.0,
        counters={},
        marks={},
        info={},
    )


def _report(*findings, unseen=(), engines=("a",), shards=(), verdicts=(), asked=ASKED):
    snapshot = Snapshot(
        now_seconds=1000.0,
        unix_seconds=1_796_083_200.0,
        engines=tuple(Engine(e, 4, tuple(_process(r, e) for r in range(4))) for e in engines),
        shards=shards,
        unseen=unseen,
    )
    return make_report(Evaluation(snapshot, findings, verdicts), asked)


@pytest.mark.parametrize(
    ("severities", "unseen", "code"),
    [
        ((), (), exit_codes.OK),
        (("info",), (), exit_codes.OK),
        (("warning",), (), exit_codes.WARNING),
        (("critical", "warning"), (), exit_codes.CRITICAL),
        ((), (GONE,), exit_codes.UNSEEN),
        (("info",), (GONE,), exit_codes.UNSEEN),
        (("warning",), (GONE,), exit_codes.WARNING),
        (("critical",), (GONE,), exit_codes.CRITICAL),
    ],
)
def test_exit_codes(severities, unseen, code):
    findings = [dataclasses.replace(LATE, severity=severity) for severity in severities]
    assert _report(*findings, unseen=unseen).exit_code == code


def test_an_abstaining_rule_is_unseen_where_an_engine_was_seen():
    verdicts = (Verdict("straggler-rank", abstained="11 of 50 collectives"), Verdict("x"))
    report = _report(verdicts=verdicts)
    assert report.exit_code == exit_codes.UNSEEN
    assert report.rules == ("x",)
    assert "straggler-rank" in report_text(report, PLAIN)
    assert "11 of 50 collectives" in report_text(report, PLAIN)


def test_without_any_engine_the_folder_alone_is_named():
    verdicts = (Verdict("straggler-rank", abstained="nothing to read"),)
    folder = Unseen("/p", reasons.EMPTY_FOLDER, "no page in /p", "start the engine")
    report = _report(unseen=(folder,), engines=(), verdicts=verdicts)
    assert report_text(report, PLAIN) == "unseen   no page in /p; start the engine"
    assert report.exit_code == exit_codes.UNSEEN


def test_shards_alone_are_an_answer():
    asked = Asked(None, ("redis://v:1",))
    verdicts = (Verdict("straggler-rank", abstained="nothing to read"),)
    report = _report(engines=(), shards=(Shard("v", True),), verdicts=verdicts, asked=asked)
    assert report.exit_code == exit_codes.OK
    assert "nothing found" in report_text(report, PLAIN)
    assert "1 shard" in report_text(report, PLAIN)


def test_a_finding_reads_as_place_cause_since_when_and_next_command():
    text = report_text(_report(LATE, unseen=(GONE,)), PLAIN)
    lines = text.splitlines()
    assert lines[0] == "CRITICAL  straggler-rank, rank 1  since 23:59:19 UTC (41 s)"
    assert "  - last in 97% of them (limit 60%)" in lines
    assert "  next     py-spy dump --pid 101" in lines
    assert "  runbook  stallscope runbook straggler-rank" in lines
    assert "unseen   c.page: cut short; restart it" in lines
    assert max(map(len, lines)) <= 80


def test_a_collective_that_stays_open_is_told():
    waiting = OpenCollective("all_gather", 7, 40.0, (1, 2, 3), (0,))
    brief = dataclasses.replace(waiting, open_seconds=0.2)
    report = _report()
    groups = (Group("world", (0, 1, 2, 3), (), (), open=(brief, waiting)),)
    engine = dataclasses.replace(report.snapshot.engines[0], groups=groups)
    snapshot = dataclasses.replace(report.snapshot, engines=(engine,))
    report = make_report(Evaluation(snapshot, (), ()), ASKED)
    assert "open     all_gather for 40 s: rank 0 did not enter it" in report_text(report, PLAIN)
    assert [row["missing_ranks"] for row in report.as_json()["open_collectives"]] == [(0,)]


def test_brief_keeps_everything_but_the_evidence():
    lines = report_text(_report(LATE), PLAIN, brief=True).splitlines()
    assert lines[0].startswith("CRITICAL  straggler-rank, rank 1")
    assert "  next     py-spy dump --pid 101" in lines
    assert not [line for line in lines if "limit 60%" in line]


def test_the_pid_is_that_of_the_finding_s_own_engine():
    finding = dataclasses.replace(LATE, engine_id="b")
    text = report_text(_report(finding, engines=("a", "b")), PLAIN)
    assert "engine b" in text.splitlines()[0]
    unknown = dataclasses.replace(LATE, engine_id="c")
    assert _report(unknown).items[0].next_command == "stallscope runbook straggler-rank"


def test_a_finding_without_a_page_has_no_next_command():
    text = report_text(_report(dataclasses.replace(LATE, id="new-rule")), PLAIN)
    assert "runbook" not in text


def test_colour_changes_nothing_but_colour():
    painted = report_text(_report(LATE, unseen=(GONE,)), Style(width=80, colour=True))
    assert "\x1b[1;31mCRITICAL\x1b[0m" in painted


def test_json_has_the_documented_keys_and_no_nan():
    finding = dataclasses.replace(
        LATE, evidence=(Evidence("x", math.nan, None, "ratio", "x"),), since_seconds=math.inf
    )
    data = json.loads(json.dumps(_report(finding, unseen=(GONE,)).as_json(), allow_nan=False))
    assert data["schema"] == 1
    (row,) = data["findings"]
    assert row.keys() >= {
        "id",
        "severity",
        "rank",
        "shard",
        "since_seconds",
        "summary",
        "evidence",
        "confidence",
        "runbook",
    }
    assert row["evidence"][0]["value"] is None
    assert row["since_seconds"] is None
    assert data["unseen"][0]["reason"] == reasons.TRUNCATED


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (41.2, "41 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (-1, "0 s")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
