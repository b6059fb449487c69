"""What ends a pod, or a part of it: dead ranks, dead shards, lookups that are given up."""

from __future__ import annotations

import time

import pytest

from tests.patched_engine.sharding.cells import PARAMETERS, Cell
from tests.patched_engine.sharding.conftest import MakeNursery
from tests.patched_engine.sharding.pod import Pod, pod, size_bytes, tokens, until
from tests.patched_engine.sharding.shards import shards
from tests.servers import valkey_server

pytest.importorskip("torch")
pytest.importorskip("lmcache")

CELLS = pytest.mark.parametrize("cell", PARAMETERS)
ASYNC = pytest.mark.parametrize("cell", [one for one in PARAMETERS if one.values[0].is_async])
COLLECTIVE_SECONDS = 6
# A rank whose neighbour in gloo's ring is alive learns of the death by the timeout alone, and then
# only when it is given a CPU.
BUSY_SECONDS = 3


@CELLS
def test_a_shard_a_rank(cell: Cell, nursery_of: MakeNursery) -> None:
    """All ranks PUT, each to its own; GETs by share; a shard that is down ends the prefix there."""
    width = cell.world_size
    chunks = 4 * width + 1
    with (
        shards(width) as store,
        pod(nursery_of(cell.version), width, store.url, is_async=cell.is_async) as made,
    ):
        made.store(1, tokens(chunks))
        made.store(2, tokens(chunks))
        for seed in (1, 2):
            names = made.one(0, "keys", seed, tokens(chunks))
            for rank in range(width):
                assert store.names(rank) & set(names) == set(names[rank::width])
        made.all("empty_l1")
        before = [store.gets(rank) for rank in range(width)]
        assert made.bring("l2", 1, tokens(chunks)) == tokens(chunks)
        gets = [store.gets(rank) - before[rank] for rank in range(width)]
        assert gets == [len(range(rank, chunks, width)) for rank in range(width)]
        down = width - 1
        store.stop(down)
        assert made.bring("l1", 1, tokens(chunks)) == tokens(chunks)
        assert made.bring("down", 2, tokens(chunks)) == tokens(down)
        made.store(3, tokens(chunks))  # nowhere to put that rank's chunks, and no harm
        made.all("empty_l1")
        assert made.bring("down", 3, tokens(chunks)) == tokens(down)
        assert store.start(down)
        made.store(4, tokens(chunks))
        made.all("empty_l1")
        until(
            lambda: made.bring("back", 4, tokens(chunks)) == tokens(chunks) or store_again(made),
            5,
            "the shard that came back is not used",
        )
        made.is_clean()


def store_again(made: Pod) -> bool:
    """The first PUT after an outage may be given up: the client waits before it tries again."""
    made.store(4, tokens(4 * made.world_size + 1))
    made.all("empty_l1")
    return False


@CELLS
def test_a_killed_rank_ends_the_load_of_the_others(cell: Cell, nursery_of: MakeNursery) -> None:
    width = cell.world_size
    chunks = 6 * width
    with valkey_server() as port:
        url = f"resp://127.0.0.1:{port}"
        chosen = {"is_async": cell.is_async, "collective_seconds": COLLECTIVE_SECONDS}
        with pod(nursery_of(cell.version), width, url, **chosen) as made:
            made.store(1, tokens(chunks))
            assert made.lookup("a", 1, tokens(chunks)) == tokens(chunks)
            made.one(1, "inject", "die", 2)
            loaded = made.all("load", "a", 1, tokens(chunks))
            assert loaded.pop(1)["error"] == "dead"
            for one in loaded:
                assert one["error"] == "LoadAborted", one
                assert one["seconds"] < COLLECTIVE_SECONDS + BUSY_SECONDS
                assert f"of {width}:" in one["why"] and "failed" in one["why"]
            # Nothing of the load is kept on those that are left.
            left = [rank for rank in range(width) if rank != 1]
            made.some(left, "unpin", "a")
            for state in made.some(left, "state"):
                assert (state["refs"], state["pins"], state["stray_bytes"]) == (0, 0, 0)


def test_a_rank_that_is_interrupted_leaves_its_group(nursery_of: MakeNursery) -> None:
    """Ctrl-C in a read: the process ends, and nobody waits longer for it than that."""
    with valkey_server() as port:
        chosen = {"collective_seconds": COLLECTIVE_SECONDS}
        with pod(nursery_of(), 2, f"resp://127.0.0.1:{port}", **chosen) as made:
            made.store(1, tokens(4))
            assert made.lookup("a", 1, tokens(4)) == tokens(4)
            made.one(1, "inject", "interrupt")
            first, second = made.all("load", "a", 1, tokens(4))
            assert second["error"] == "dead" and "KeyboardInterrupt" in second["why"]
            assert (
                first["error"] == "LoadAborted"
                and first["seconds"] < COLLECTIVE_SECONDS + BUSY_SECONDS
            )


@ASYNC
def test_a_prefetch_that_fails_is_answered_at_once(cell: Cell, nursery_of: MakeNursery) -> None:
    width = cell.world_size
    chunks = 3 * width
    with valkey_server() as port:
        url = f"resp://127.0.0.1:{port}"
        with pod(nursery_of(cell.version), width, url, is_async=True) as made:
            made.store(1, tokens(chunks))
            for where in ("prefetch", "contains"):
                made.all("empty_l1")
                made.one(1, "inject", where, 0, False)
                begun = time.monotonic()
                found = made.lookup("fails", 1, tokens(chunks))
                assert time.monotonic() - begun < 1
                assert found == tokens(1)  # the failed rank is in the way from its first chunk on
                made.are_right(made.load("fails", 1, found), tokens(1))
                made.one(1, "heal")
                assert made.bring("after", 1, tokens(chunks)) == tokens(chunks)
            faults = made.one(1, "state")["faults"]
            assert any("sharded prefetch from RemoteBackend" in name for name in faults)
            # Half of it in L1, half in L2, and the GET of that fails: what L1 has is loaded.
            for seed, where in ((2, "prefetch"), (3, "contains")):
                made.store(seed, tokens(chunks))
                made.all("empty_l1")
                assert made.bring("half", seed, tokens(width)) == tokens(width)
                made.one(1, "inject", where, 0, False)
                assert made.bring("half", seed, tokens(chunks)) == tokens(width + 1)
                made.one(1, "heal")
            made.is_clean()


@ASYNC
def test_a_lookup_that_is_given_up_gets_no_more(cell: Cell, nursery_of: MakeNursery) -> None:
    """It ends with the GET that is under way, frees all that it has, and what came is counted."""
    width = cell.world_size
    chunks, in_l1 = 8 * width, 2 * width
    with (
        shards(width) as store,
        pod(nursery_of(cell.version), width, store.url, is_async=True) as made,
    ):
        made.store(1, tokens(chunks))
        made.all("empty_l1")
        assert made.bring("some", 1, tokens(in_l1)) == tokens(in_l1)  # pinned while looked for
        made.all("inject", "slices", 1)
        before = [store.gets(rank) for rank in range(width)]
        counted = made.counters()
        made.all("inject", "slow_get", 0.4)
        made.all("ask", "given up", 1, tokens(chunks))
        time.sleep(0.6)  # the second GET of each rank waits
        made.all("cancel", "given up")
        assert None not in made.all("answer", "given up")  # upstream's client counts the answers
        made.all("heal")
        for rank in range(width):
            assert store.gets(rank) - before[rank] <= 2
        wasted = [
            new["load_wasted_bytes"] - old["load_wasted_bytes"]
            for old, new in zip(counted, made.counters(), strict=True)
        ]
        assert wasted == [
            size_bytes(store.gets(rank) - before[rank]) for rank in range(width)
        ] and all(wasted)
        made.is_clean()
        # Given up when all of it has come already.
        counted = made.counters()
        assert made.lookup("late", 1, tokens(chunks)) == tokens(chunks)
        made.all("cancel", "late")
        made.is_clean()
        for old, new in zip(counted, made.counters(), strict=True):
            assert new["load_wasted_bytes"] - old["load_wasted_bytes"] == size_bytes(6)
        # And twice, and one that nobody knows.
        made.all("cancel", "late")
        made.all("cancel", "never asked")
        assert made.bring("after", 1, tokens(chunks)) == tokens(chunks)
        made.is_clean()


def test_a_lookup_that_a_frozen_shard_keeps_is_freed_when_its_get_ends(
    nursery_of: MakeNursery,
) -> None:
    width, chunks = 2, 8
    with (
        shards(width) as store,
        pod(nursery_of(), width, store.url, is_async=True, blocking_seconds=1) as made,
    ):
        made.store(1, tokens(chunks))
        made.all("empty_l1")
        made.one(1, "inject", "slow_get", 0.3)
        made.all("ask", "a", 1, tokens(chunks))
        time.sleep(0.15)  # it has found its chunks; now its GETs meet a frozen server
        with store.frozen(1):
            time.sleep(0.3)
            made.all("cancel", "a")
            assert None not in made.all("answer", "a")  # within the client's deadline
            made.one(1, "heal")
            made.is_clean()
        until(
            lambda: made.bring("after", 1, tokens(chunks)) == tokens(chunks),
            5,
            "it does not recover",
        )
        made.is_clean()
