"""Real engines of one pod on real Valkey: what is stored is loaded, by all, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import redis

from tests.patched_engine.sharding.cells import PARAMETERS, Cell
from tests.patched_engine.sharding.conftest import MakeNursery
from tests.patched_engine.sharding.pod import Pod, pod, size_bytes, tokens
from tests.servers import valkey_server

pytest.importorskip("torch")
pytest.importorskip("lmcache")

_seeds = itertools.count(1)


class Place:
    """A pod with its shard."""

    def __init__(self, cell: Cell, made: Pod, port: int) -> None:
        self.cell, self.pod, self.port = cell, made, port
        self.server = redis.Redis(port=port)

    @property
    def width(self) -> int:
        return self.cell.world_size

    def stored(self, chunks: int, more: int = 0) -> int:
        """A new prompt that every rank has stored, in L1 and L2; its seed."""
        seed = next(_seeds)
        self.pod.store(seed, tokens(chunks) + more)
        return seed

    def delete(self, seed: int, chunk: int) -> None:
        name = self.pod.one(0, "keys", seed, tokens(chunk + 1))[chunk]
        assert self.server.delete(name) == 1

    def owners(self, chunks: int) -> list[int]:
        """How many of the first chunks each rank has."""
        return [len(range(rank, chunks, self.width)) for rank in range(self.width)]


@pytest.fixture(scope="module", params=PARAMETERS)
def place(request: pytest.FixtureRequest, nursery_of: MakeNursery) -> Iterator[Place]:
    cell: Cell = request.param
    with valkey_server() as port:
        url = f"resp://127.0.0.1:{port}"
        nursery = nursery_of(cell.version)
        with pod(nursery, cell.world_size, url, is_async=cell.is_async) as made:
            assert made.begun == [{"ok": True}] * cell.world_size
            yield Place(cell, made, port)


def test_what_is_stored_is_loaded_from_l1_and_from_l2(place: Place) -> None:
    """Prompts shorter than a chunk, shorter than W chunks, of whole rounds and of ragged ones."""
    width = place.width
    for chunks in (0, 1, width - 1, width, width + 1, 6 * width - 1):
        seed = place.stored(chunks, 17)
        for _ in range(3):  # the second and third L1 hit of one prompt kill a stock 0.5.5
            assert place.pod.bring("l1", seed, tokens(chunks) + 17) == tokens(chunks)
        assert place.pod.all("empty_l1") == [0] * width
        for _ in range(2):
            assert place.pod.bring("l2", seed, tokens(chunks) + 17) == tokens(chunks)
        # A longer prompt that begins as this one.
        assert place.pod.bring("longer", seed, tokens(chunks + 5)) == tokens(chunks)
    place.pod.is_clean()


def test_each_rank_has_its_share_and_no_other(place: Place) -> None:
    before = place.pod.counters()
    chunks = 5 * place.width + 1
    seed = place.stored(chunks)
    names = place.pod.one(0, "keys", seed, tokens(chunks))
    place.pod.all("empty_l1")
    assert place.pod.bring("share", seed, tokens(chunks)) == tokens(chunks)
    after = place.pod.counters()
    for rank, (own, state) in enumerate(
        zip(place.owners(chunks), place.pod.all("state"), strict=True)
    ):
        assert set(state["l1"]) & set(names) == set(names[rank :: place.width])
        for counter in ("store_bytes", "put_l2_bytes", "load_l2_bytes"):
            assert after[rank][counter] - before[rank][counter] == size_bytes(own), counter
        assert state["kind"] == "ShardedEngine" and state["faults"] == {} and state["page"]
        assert state["l1_bytes"] == place.pod.spec["pod_bytes"] / place.width
    place.pod.is_clean()


def test_l2_hits_are_in_l1_afterwards(place: Place) -> None:
    chunks = 3 * place.width
    seed = place.stored(chunks)
    place.pod.all("empty_l1")
    place.delete(seed, chunks - 1)
    assert place.pod.bring("first", seed, tokens(chunks)) == tokens(chunks - 1)
    before = place.pod.counters()
    assert place.pod.bring("again", seed, tokens(chunks - 1)) == tokens(chunks - 1)
    for old, new in zip(before, place.pod.counters(), strict=True):
        assert new["load_l2_chunks"] == old["load_l2_chunks"]
        assert new["load_l1_chunks"] > old["load_l1_chunks"]
    assert all(place.pod.all("l1_is_right", seed, tokens(chunks)))
    # A read that brings a part of what was found keeps that part.
    seed = place.stored(chunks)
    place.pod.all("empty_l1")
    if place.cell.is_async:
        place.pod.all("inject", "slow_get", 0.25)
    asked = place.pod.all("ask", "part", seed, tokens(chunks))
    place.delete(seed, chunks - 1)
    found = min(place.pod.all("answer", "part") if place.cell.is_async else asked)
    place.pod.all("heal")
    place.pod.are_right(place.pod.load("part", seed, found), tokens(chunks - 1))
    names = place.pod.one(0, "keys", seed, tokens(chunks))
    held = {name for state in place.pod.all("state") for name in state["l1"]}
    assert set(names) & held == set(names[:-1])
    place.pod.is_clean()


def test_a_chunk_missing_before_the_lookup_ends_the_prefix_there(place: Place) -> None:
    chunks = 2 * place.width + 1
    for missing in range(chunks):
        seed = place.stored(chunks)
        place.pod.all("empty_l1")
        place.delete(seed, missing)
        assert place.pod.bring("missing", seed, tokens(chunks)) == tokens(missing)
    place.pod.is_clean()


def test_a_chunk_that_goes_between_lookup_and_load(place: Place) -> None:
    chunks = 2 * place.width + 1
    for missing in range(chunks):
        seed = place.stored(chunks)
        place.pod.all("empty_l1")
        if place.cell.is_async:
            place.pod.all("inject", "slow_get", 0.25)
            place.pod.all("ask", "gone", seed, tokens(chunks))
            place.delete(seed, missing)
            found = min(place.pod.all("answer", "gone"))
            place.pod.all("heal")
            assert found == tokens(missing)
            loaded = place.pod.load("gone", seed, found) if found else None
            if loaded is None:
                place.pod.all("unpin", "gone")
        else:
            assert place.pod.lookup("gone", seed, tokens(chunks)) == tokens(chunks)
            place.delete(seed, missing)
            loaded = place.pod.load("gone", seed, tokens(chunks))
        if loaded is not None:
            place.pod.are_right(loaded, tokens(missing))
        assert all(place.pod.all("l1_is_right", seed, tokens(chunks)))
    place.pod.is_clean()


def test_a_prefix_that_vllm_has_already_is_not_loaded(place: Place) -> None:
    chunks = 2 * place.width + 1
    seed = place.stored(chunks)
    for skip in range(chunks + 1):
        place.pod.all("empty_l1") if skip % 2 else None
        assert place.pod.lookup("mask", seed, tokens(chunks)) == tokens(chunks)
        loaded = place.pod.load("mask", seed, tokens(chunks), tokens(skip))
        place.pod.are_right(loaded, tokens(chunks - skip))
    place.pod.is_clean()


@pytest.mark.parametrize("where", ["prepare", "read", "stage", "place"])
def test_an_exception_on_one_rank_shortens_the_prefix_for_all(place: Place, where: str) -> None:
    width, chunks = place.width, 6 * place.width + 1
    for rank in (0, width - 1):
        for number in (0,) if where in ("prepare", "read") else (0, 1, 5):
            seed = place.stored(chunks)
            place.pod.all("empty_l1") if number else None
            assert place.pod.lookup("fault", seed, tokens(chunks)) == tokens(chunks)
            place.pod.one(rank, "inject", where, number)
            loaded = place.pod.load("fault", seed, tokens(chunks))
            place.pod.one(rank, "heal")
            end = {"prepare": 0, "read": rank, "stage": number * width + rank}.get(
                where, number * width
            )
            place.pod.are_right(loaded, tokens(end))
            assert place.pod.bring("after", seed, tokens(chunks)) == tokens(chunks)
    place.pod.is_clean()


def test_ranks_that_mean_other_chunks_load_nothing(place: Place) -> None:
    seed = place.stored(place.width + 1)
    length = tokens(place.width + 1)
    assert place.pod.lookup("other", seed, length) == length
    place.pod.one(1, "inject", "fingerprint")
    loaded = place.pod.load("other", seed, length)
    place.pod.one(1, "heal")
    place.pod.are_right(loaded, 0)
    assert "has another fingerprint" in place.pod.log(0)
    # One that was asked for another length, as a rank with another view of the prompt would be.
    assert place.pod.lookup("short", seed, length) == length
    place.pod._say(0, "load", "short", seed, tokens(1))
    rest = place.pod.some(range(1, place.width), "load", "short", seed, length)
    assert [one["loaded"] for one in (place.pod._hear(0), *rest)] == [0] * place.width
    place.pod.all("unpin", "short")
    assert place.pod.bring("after", seed, length) == length
    place.pod.is_clean()


@pytest.mark.parametrize(
    "seconds", [2.0, pytest.param(5.0, marks=pytest.mark.soak)], ids=["2s", "5s"]
)
def test_a_late_rank_makes_the_others_wait_and_no_more(place: Place, seconds: float) -> None:
    seed = place.stored(place.width)
    place.pod.one(place.width - 1, "inject", "late", seconds)
    assert place.pod.lookup("late", seed, tokens(place.width)) == tokens(place.width)
    loaded = place.pod.load("late", seed, tokens(place.width))
    place.pod.all("heal")
    place.pod.are_right(loaded, tokens(place.width))
    assert all(seconds <= one["seconds"] < seconds + 3 for one in loaded)
    place.pod.is_clean()


def test_a_store_that_fails_is_found_by_nobody_and_breaks_nothing(place: Place) -> None:
    chunks = 2 * place.width
    for where in ("from_gpu", "put"):
        seed = next(_seeds)
        place.pod.one(1, "inject", where, 0)
        place.pod.store(seed, tokens(chunks))
        place.pod.one(1, "heal")
        # L1 takes chunks before a PUT that fails does.
        place.pod.all("empty_l1")
        assert place.pod.bring("after", seed, tokens(chunks)) == tokens(1)
    place.pod.is_clean()


def test_a_full_l1_shortens_the_prefix_and_breaks_nothing(place: Place) -> None:
    chunks = 4 * place.width
    seed = place.stored(chunks)
    other = next(_seeds)
    place.pod.all("empty_l1")
    had = place.pod.one(1, "hold", 1 << 20)
    assert had > chunks
    # Nothing can be loaded from L2 there, and nothing stored.
    found = place.pod.lookup("full", seed, tokens(chunks))
    loaded = place.pod.load("full", seed, found)
    place.pod.are_right(loaded, tokens(1))
    place.pod.store(other, tokens(chunks))
    place.pod.one(1, "let_go")
    assert place.pod.bring("other", other, tokens(chunks)) == tokens(1)
    assert place.pod.bring("after", seed, tokens(chunks)) == tokens(chunks)
    place.pod.is_clean()
