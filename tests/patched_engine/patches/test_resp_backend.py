"""Faults of L2 under a real engine: with the patch they cost what is missing, without it more."""

from __future__ import annotations

import pytest

from tests.patched_engine.patches import programs
from tests.patched_engine.patches.engine import BLOCKING_SECONDS, CHUNK_TOKENS, LENGTH
from tests.patched_engine.patches.faults import MISSING_CHUNK, ROOM_CHUNKS
from tests.servers import valkey_server

VERSIONS = pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
PREFIX = {
    "missing-key": MISSING_CHUNK,
    "missing-first": 0,
    "wrong-size": MISSING_CHUNK,
    "wrong-type": MISSING_CHUNK,
}
PROMPT_SECONDS = BLOCKING_SECONDS / 2


def run(tmp_path, version, patches, *faults):
    with valkey_server() as port:
        return programs.run(
            "faults", port, *faults, folder=tmp_path, version=version, patches=patches
        )


@VERSIONS
def test_a_fault_costs_the_chunks_behind_it_and_nothing_else(tmp_path, version):
    found = run(tmp_path, version, programs.ALL, "none", *PREFIX, "cut", "lost-completion")
    assert found is not None
    assert found["l2"] == "RespBackend" and found["faults"] == {}
    assert found["patches"]["resp-backend"] == "applied"
    for fault in ("none", *PREFIX, "cut"):
        seen = found[fault]
        assert seen["first"]["equal"] and seen["first"]["rest_untouched"], fault
        assert seen["l1_is_right"] and seen["left_bytes"] == 0, fault
        assert seen["first"]["seconds"] < PROMPT_SECONDS, fault
        assert seen["again"]["loaded"] == LENGTH and seen["again"]["equal"], fault
        if fault in PREFIX:
            assert seen["first"]["loaded"] == PREFIX[fault] * CHUNK_TOKENS, fault
    assert found["none"]["first"]["loaded"] == LENGTH
    assert found["cut"]["first"]["loaded"] == LENGTH  # asked again on a new connection
    assert found["lost-completion"]["found"] == LENGTH


@VERSIONS
def test_without_the_patch_a_missing_key_costs_the_whole_load_and_its_timeout(tmp_path, version):
    found = run(tmp_path, version, programs.NONE, "missing-key")
    if found is not None:  # else it stood still for good
        assert found["l2"] == "RemoteBackend"
        seen = found["missing-key"]
        assert seen["first"]["loaded"] < MISSING_CHUNK * CHUNK_TOKENS
        assert seen["first"]["seconds"] >= BLOCKING_SECONDS
        assert seen["left_bytes"] > 0


@VERSIONS
def test_without_the_patch_cut_connections_bring_wrong_bytes_and_stay_cut(tmp_path, version):
    found = run(tmp_path, version, programs.NONE, "cut")
    if found is not None:
        seen = found["cut"]
        assert not (seen["first"]["equal"] and seen["l1_is_right"])
        assert seen["again"]["loaded"] < LENGTH


@VERSIONS
def test_without_the_patch_a_late_return_loses_its_completion(tmp_path, version):
    found = run(tmp_path, version, programs.NONE, "lost-completion")
    assert found is None or found["lost-completion"]["found"] is None


def test_a_load_larger_than_l1_brings_what_fits(tmp_path):
    found = run(tmp_path, "0.5.5", programs.ALL, "l1-full")
    assert found is not None
    seen = found["l1-full"]
    assert seen["first"]["loaded"] == ROOM_CHUNKS * CHUNK_TOKENS and seen["first"]["equal"]
    assert seen["left_bytes"] == 0


def test_without_the_patch_a_load_larger_than_l1_never_ends(tmp_path):
    with valkey_server() as port:
        found = programs.run(
            "faults", port, "l1-full", folder=tmp_path, patches=programs.NONE, seconds=9
        )
    assert found is None
