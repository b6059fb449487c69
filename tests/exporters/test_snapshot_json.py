"""An Evaluation written as JSON is read back the same, and what is none is refused in one line."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.snapshot import Evaluation, Evidence, Finding, Verdict
from exporters.snapshot_json import SCHEMA, SnapshotError, from_json, to_json
from tests.exporters.test_server import _evaluation


def _whole():
    evidence = (Evidence("wait_seconds", 3.5, None, "seconds", "waited"),)
    finding = Finding("straggler-rank", "critical", "text", 1, None, "e", 12.0, evidence)
    base = _evaluation()
    return Evaluation(base.snapshot, (finding,), (Verdict("straggler-rank", (finding,)),))


def test_it_is_read_back_the_same():
    evaluation = _whole()
    again = from_json(json.loads(json.dumps(to_json(evaluation, with_earlier=True))))
    assert again == evaluation


def test_without_the_pictures_before_it_is_small():
    evaluation = _whole()
    again = from_json(to_json(evaluation))
    picture = dataclasses.replace(evaluation.snapshot, earlier=())
    assert again == dataclasses.replace(evaluation, snapshot=picture)


def test_a_number_that_json_has_not_is_none_there():
    evaluation = _whole()
    picture = dataclasses.replace(evaluation.snapshot, now_seconds=math.inf)
    text = json.dumps(to_json(dataclasses.replace(evaluation, snapshot=picture)), allow_nan=False)
    assert math.isnan(from_json(json.loads(text)).snapshot.now_seconds)


def test_fields_of_a_later_writer_are_left_out():
    data = to_json(_whole())
    data["evaluation"]["snapshot"]["engines"][0]["new"] = {"a": 1}
    assert from_json(data) == from_json(to_json(_whole()))


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("schema",), SCHEMA + 1, "has schema"),
        (("evaluation",), [], "evaluation is no object"),
        (("evaluation", "snapshot"), None, "evaluation.snapshot is no object"),
        (("evaluation", "snapshot", "shards"), {}, "evaluation.snapshot.shards is no list"),
        (("evaluation", "snapshot", "shards", 0, "up"), "yes", "shards[0].up is 'yes', no bool"),
        (("evaluation", "snapshot", "engines", 0, "world_size"), 2.5, "no int"),
        (("evaluation", "findings", 0, "severity"), "fatal", "none of"),
        (("evaluation", "findings", 0, "summary"), 7, "no str"),
    ],
)
def test_what_is_none_is_refused_in_one_line(path, value, told):
    data = copy.deepcopy(to_json(_whole()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(SnapshotError) as refused:
        from_json(data)
    assert told in str(refused.value) and "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_anything_else_is_refused_and_never_raises_otherwise(value):
    with pytest.raises(SnapshotError):
        from_json({"schema": SCHEMA, "evaluation": value})
