"""A prompt hit again and again: each object is pinned and freed as often as it was taken."""

from __future__ import annotations

import pytest

from tests.patched_engine.patches import programs
from tests.patched_engine.patches.engine import CHUNKS
from tests.patched_engine.patches.hits import HITS
from tests.servers import valkey_server

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


def hits(tmp_path, version, mode, patches):
    with valkey_server() as port:
        return programs.run("hits", port, mode, folder=tmp_path, version=version, patches=patches)


@MODES
@pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
def test_every_hit_leaves_l1_as_it_was(tmp_path, version, mode):
    found = hits(tmp_path, version, mode, "all")
    assert found is not None and found["faults"] == {}
    assert found["loads"] == [True] * HITS
    assert found["complaints"] == []
    assert found["pins"] == [0] * CHUNKS and found["references"] == [1] * CHUNKS


@MODES
def test_without_the_patch_something_is_released_twice(tmp_path, mode):
    found = hits(tmp_path, "0.5.5", mode, "-release-once")
    assert found is None or found["complaints"] or not all(found["loads"])
