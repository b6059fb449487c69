"""What can be seen from here: stacks, names of chunks, shards; each with its mend."""

from __future__ import annotations

import os

import pytest

from exporters.readers.ptrace_rights import Hindrance
from runbooks import sight
from tests.detectors.fleet_pictures import facts, ranks


def rows(processes=(), pids=()):
    return {row.name: row for row in sight.section(processes, pids).rows}


def test_stacks_that_can_be_read(monkeypatch):
    monkeypatch.setattr(sight, "hindrance", lambda pid: None)
    row = rows(pids=[os.getpid()])["stacks"]
    assert (row.state, row.level) == ("can be read", "ok")


@pytest.mark.parametrize(
    ("py_spy", "pids", "hindered", "says"),
    [
        (None, [1], None, "pip install py-spy"),
        ("/x", [], None, "in the engine's container"),
        ("/x", [1], Hindrance("no right", "kubectl debug ..."), "kubectl debug"),
    ],
)
def test_stacks_that_cannot(monkeypatch, py_spy, pids, hindered, says):
    monkeypatch.setattr(sight, "find_py_spy", lambda: py_spy)
    monkeypatch.setattr(sight, "hindrance", lambda pid: hindered)
    row = rows(pids=pids)["stacks"]
    assert (row.level, says in row.why) == ("unseen", True)


def test_names_of_chunks():
    assert rows(ranks())["chunk names"].level == "ok"
    assert rows(ranks(info=facts(key_fingerprint="")))["chunk names"].level == "note"
    mixed = (*ranks(2), *ranks(2, info=facts(key_fingerprint="bb")))
    row = rows(mixed)["chunk names"]
    assert (row.level, "PYTHONHASHSEED" in row.why) == ("warning", True)


def test_the_shards_of_the_pages_as_diagnose_takes_them():
    row = rows(ranks(2))["shards"]
    assert row.state == "2 in the pages"
    assert "--valkey resp://v-0:6379 --valkey resp://v-1:6379" in row.why
    assert "shards" not in rows(ranks(2, info={}))
