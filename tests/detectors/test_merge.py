"""A cause, and under it what follows from it; nothing lost, nothing twice."""

from __future__ import annotations

import itertools
import random

import pytest

from detectors import ALL_RULES
from detectors.merge import FOLLOWS, merged
from exporters.snapshot import Evidence, Finding


def finding(name, rank=None, shard=None, engine="e", evidence=()):
    return Finding(name, "critical", name, rank, shard, engine, evidence=evidence)


def shape(findings):
    return [(m.cause.id, [f.id for f in m.symptoms]) for m in merged(findings)]


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (
            [finding("store-skew", 0), finding("straggler-rank", 0)],
            [("store-skew", ["straggler-rank"])],
        ),
        (
            [finding("store-skew", 0), finding("straggler-rank", 1)],
            [("store-skew", []), ("straggler-rank", [])],
        ),
        (
            [finding("stuck-lookup", 1), finding("rank-silent", 1), finding("lookup-timeouts")],
            [("stuck-lookup", ["rank-silent", "lookup-timeouts"])],
        ),
        (
            [finding("shard-down", None, "v-1"), finding("stuck-lookup", 1, "v-2")],
            [("shard-down", []), ("stuck-lookup", [])],
        ),
        # Through one another: the shard brings the eviction, which brings the wedge.
        (
            [
                finding("cold-shard", 2, "v-2"),
                finding("evicted-before-load", 2, "v-2"),
                finding("wedged-connection", 2, "v-2"),
            ],
            [("cold-shard", ["evicted-before-load", "wedged-connection"])],
        ),
        (
            [finding("store-skew", 0, engine="a"), finding("straggler-rank", 0, engine="b")],
            [("store-skew", []), ("straggler-rank", [])],
        ),
    ],
)
def test_what_stands_under_what(findings, expected):
    assert shape(findings) == expected


def test_the_closest_cause_has_it():
    late = finding("straggler-rank", 0)
    assert shape([finding("shard-down", None, "v-1"), finding("store-skew", 0), late]) == [
        ("shard-down", []),
        ("store-skew", ["straggler-rank"]),
    ]
    assert shape([finding("shard-saturated", None, "v-1"), finding("cpu-throttled", 0), late]) == [
        ("shard-saturated", []),
        ("cpu-throttled", ["straggler-rank"]),
    ]


def test_what_killed_an_engine_stands_above_it():
    assert shape([finding("engine-dead"), finding("refcount-error")]) == [
        ("refcount-error", ["engine-dead"])
    ]


def test_a_stopped_heart_is_nobodys_symptom_but_a_dead_engines():
    beat = (Evidence("heartbeat_age_seconds", 9.0, 3.0, "seconds", "9 s"),)
    silent = finding("rank-silent", 1, evidence=beat)
    assert shape([finding("shard-down", None, "v"), silent]) == [
        ("shard-down", []),
        ("rank-silent", []),
    ]
    assert shape([finding("engine-dead"), silent]) == [("engine-dead", ["rank-silent"])]


def test_each_finding_is_there_once_whatever_stands_together():
    draw = random.Random(3)
    names = sorted({*FOLLOWS, *itertools.chain(*FOLLOWS.values())})
    for _ in range(500):
        found = [
            finding(draw.choice(names), draw.choice((None, 0, 1)), draw.choice((None, "v")))
            for _ in range(draw.randint(0, 8))
        ]
        told = [f for m in merged(found) for f in (m.cause, *m.symptoms)]
        assert sorted(map(id, told)) == sorted(map(id, found))


def test_the_table_names_rules_and_has_no_circle():
    known = {rule.name for rule in ALL_RULES} | {"rho-rising"}
    assert {*FOLLOWS, *itertools.chain(*FOLLOWS.values())} <= known

    def reaches(name, seen=()):
        assert name not in seen, (*seen, name)
        for symptom in FOLLOWS.get(name, ()):
            reaches(symptom, (*seen, name))

    for cause in FOLLOWS:
        reaches(cause)
