"""LMCache's own lookups, sync and async, over tiers in memory: the same prefix, nothing leaked."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from patched_engine.sharding.ownership import answers, owned
from tests.patched_engine.sharding.test_ownership import SIZE, longest_prefix, prompt

pytest.importorskip("torch")
pytest.importorskip("lmcache")

PATTERNS = 3_000


class Item:
    """A memory object that counts its references and pins, and how often it was freed twice."""

    twice = 0  # of all: what frees them swallows what they raise

    def __init__(self, references: int = 0) -> None:
        self.references = references
        self.pins = 0

    @property
    def is_pinned(self) -> bool:
        return self.pins > 0

    def unpin(self) -> None:
        Item.twice += self.pins <= 0
        self.pins -= 1

    def ref_count_down(self) -> None:
        Item.twice += self.references <= 0
        self.references -= 1

    def get_size(self) -> int:
        return 1


class Tier:
    """A backend: what it holds, what of it is gone when it is read, whether reading raises."""

    def __init__(self, held: set[int], gone: set[int], raises: bool = False) -> None:
        self.items = {index: Item(1) for index in held}
        self.gone, self.raises = gone, raises
        self.given: list[Item] = []
        self.gets = 0

    def batched_contains(self, keys: list[int], pin: bool = False) -> int:
        count = 0
        for key in keys:
            if key not in self.items:
                break
            if pin:
                self.pin(self.items[key])
            count += 1
        return count

    def pin(self, item: Item) -> None:
        """Only L1 can."""

    async def batched_async_contains(self, lookup_id: str, keys: list[int], pin: bool) -> int:
        return self.batched_contains(keys, pin)

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[int], spec: Any) -> Any:
        await asyncio.sleep(0)
        if self.raises:
            raise ConnectionError("the server is gone")
        came = []
        for key in keys:
            if key in self.gone:
                break
            self.gets += 1
            came.append(Item(1))
        self.given += came
        return came

    def left(self) -> int:
        return sum(item.references + item.pins for item in self.given)


class Memory(Tier):
    """L1: gives what it holds, pinned by the lookup."""

    def pin(self, item: Item) -> None:
        item.pins += 1

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[int], spec: Any) -> Any:
        came = []
        for key in keys:
            if key in self.gone:
                break
            self.items[key].references += 1
            came.append(self.items[key])
        return came

    def left(self) -> int:
        return sum(item.references - 1 + item.pins for item in self.items.values())


class Server:
    """Where the answers go."""

    def __init__(self) -> None:
        self.said: dict[str, list[int]] = {}

    def send_response_to_scheduler(self, lookup_id: str, num_hit_tokens: int) -> None:
        self.said.setdefault(lookup_id, []).append(num_hit_tokens)


class Rank:
    """One rank's real StorageManager over such tiers, as a sharded engine asks it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, l1: Tier, l2: Tier) -> None:
        from lmcache.v1.event_manager import EventManager
        from lmcache.v1.storage_backend.storage_manager import (
            AsyncSingleSerializer,
            StorageManager,
        )

        from patched_engine.sharding.answers import Answers
        from patched_engine.sharding.engine import ShardedEngine

        self.loop, self.l1, self.l2 = loop, l1, l2
        manager = StorageManager.__new__(StorageManager)
        manager.storage_backends = OrderedDict(LocalCPUBackend=l1, RemoteBackend=l2)
        manager._freeze, manager._freeze_lock = False, threading.RLock()
        manager._bypassed_backends, manager._bypass_lock = set(), threading.RLock()
        manager.event_manager = EventManager()
        manager.async_serializer = AsyncSingleSerializer(loop)
        manager.loop = loop
        self.manager = manager
        self.server = Server()
        engine: Any = SimpleNamespace(event_manager=manager.event_manager, storage_manager=manager)
        self.answers = Answers(
            self.server, lambda name: ShardedEngine._free_prefetched(engine, name)
        )
        engine.stallscope_shard = SimpleNamespace(answers=self.answers)
        self.engine = engine
        manager.async_lookup_server = self.answers

    def cancel(self, name: str) -> None:
        from patched_engine.sharding.engine import ShardedEngine

        self.engine._free_prefetched = lambda n: ShardedEngine._free_prefetched(self.engine, n)
        ShardedEngine.cleanup_memory_objs(self.engine, name)

    def look(self, name: str, keys: list[int], reached: list[int]) -> Any:
        """As ShardedEngine.async_lookup_and_prefetch; what it leaves to the storage loop."""
        self.answers.expect(name, reached[0])
        if not keys:
            self.answers.send_response_to_scheduler(name, 0)
        return self._prefetch(name, keys, reached) if keys else asyncio.sleep(0)

    async def _prefetch(self, name: str, keys: list[int], reached: list[int]) -> None:
        from patched_engine.sharding.guarded import GuardedManager

        await type(self.manager).async_lookup_and_prefetch(
            GuardedManager(self.manager, self.answers), name, keys, reached, None, True
        )

    def answer(self, name: str) -> int:
        """Exactly one, in the time that a few turns of the loop take."""
        for _ in range(200):
            if name in self.server.said:
                break
            self.loop.run_until_complete(asyncio.sleep(0))
        (found,) = self.server.said[name]
        return found

    def take(self, name: str) -> None:
        from patched_engine.sharding.reading import Held

        held = Held()
        held.take_prefetched(self.engine, name)
        held.release()


@pytest.fixture
def loop(caplog):
    # A line an answer, of 25,000.
    caplog.set_level("ERROR", "lmcache.v1.storage_backend.storage_manager")
    made = asyncio.new_event_loop()
    Item.twice = 0
    yield made
    made.close()
    assert Item.twice == 0


def draw(drawn: random.Random) -> tuple[int, int, set[int]]:
    """W, chunks, absent chunks."""
    width, count = drawn.randint(1, 16), int(1000 ** drawn.random())
    return width, count, {drawn.randrange(count) for _ in range(drawn.randint(0, 3))}


def test_sync_and_async_find_the_longest_prefix_that_is_there(loop):
    drawn = random.Random(1)
    for number in range(PATTERNS):
        width, count, absent = draw(drawn)
        chunks = prompt(count, drawn.randint(1, SIZE))
        present = {c.index for c in chunks} - absent
        in_l1 = drawn.randint(0, count)
        synchronous, asynchronous = [], []
        for r in range(width):
            keys = [c.key for c in owned(chunks, r, width)]
            reached = answers(chunks, r, width)
            l1 = Memory({key for key in keys if key < in_l1 and key in present}, set())
            rank = Rank(loop, l1, Tier({key for key in keys if key in present}, set()))
            hits, _ = rank.manager.batched_contains(keys)
            synchronous.append(reached[hits])
            name = f"{number}"
            loop.run_until_complete(rank.look(name, keys, reached))
            asynchronous.append(rank.answer(name))
            rank.take(name)
            assert (l1.left(), rank.l2.left()) == (0, 0)
        assert synchronous == asynchronous
        assert min(synchronous) == longest_prefix(chunks, present), (width, count, absent)


def test_what_goes_between_lookup_and_read_ends_the_prefix_and_is_freed_once(loop):
    """A tier that brings less than it found: upstream frees the next tiers' chunks twice."""
    drawn = random.Random(2)
    for number in range(500):
        width, count, _ = draw(drawn)
        chunks = prompt(count)
        everything = {c.index for c in chunks}
        gone_l1 = {drawn.randrange(count)} if number % 2 else set()
        gone_l2 = {drawn.randrange(count) for _ in range(drawn.randint(0, 2))}
        in_l1 = drawn.randint(0, count)
        said = []
        missing = set()
        for r in range(width):
            keys = [c.key for c in owned(chunks, r, width)]
            l1 = Memory({key for key in keys if key < in_l1}, gone_l1)
            rank = Rank(loop, l1, Tier(everything & set(keys), gone_l2))
            missing |= {k for k in keys if (k in gone_l1 if k < in_l1 else k in gone_l2)}
            loop.run_until_complete(rank.look("a", keys, answers(chunks, r, width)))
            said.append(rank.answer("a"))
            rank.take("a")
            # A pin of a chunk that L1 has lost meanwhile went with the chunk.
            lost = sum(
                item.pins
                for key, item in l1.items.items()
                if gone_l1 and key >= min(gone_l1) and key < in_l1
            )
            assert (l1.left() - lost, rank.l2.left()) == (0, 0)
        assert min(said) == longest_prefix(chunks, everything - missing)


@pytest.mark.parametrize("in_l1", [0, 3])
def test_a_tier_that_raises_is_a_miss_and_is_answered_at_once(loop, in_l1):
    chunks = prompt(8)
    keys = [c.key for c in owned(chunks, 1, 2)]
    l1 = Memory({key for key in keys if key < in_l1}, set())
    rank = Rank(loop, l1, Tier(set(keys), set(), raises=True))
    loop.run_until_complete(rank.look("a", keys, answers(chunks, 1, 2)))
    assert rank.answer("a") == (3 if in_l1 else 1) * SIZE
    rank.take("a")
    assert (l1.left(), rank.l2.left()) == (0, 0)


def test_a_rank_that_finds_nothing_is_not_in_the_way_before_its_first_chunk(loop):
    chunks = prompt(8)
    rank = Rank(loop, Memory(set(), set()), Tier(set(), set()))
    keys = [c.key for c in owned(chunks, 3, 4)]
    loop.run_until_complete(rank.look("a", keys, answers(chunks, 3, 4)))
    assert rank.answer("a") == 3 * SIZE
    short = prompt(2)  # shorter than W chunks: this rank owns none of it
    loop.run_until_complete(rank.look("b", [], answers(short, 3, 4)))
    assert rank.answer("b") == 2 * SIZE
    loop.run_until_complete(rank.look("c", [], answers([], 3, 4)))
    assert rank.answer("c") == 0


@pytest.mark.parametrize("waits", [False, True], ids=["", "behind-another"])
@pytest.mark.parametrize("turns", range(12))
def test_a_lookup_given_up_at_any_turn_frees_all_and_starts_no_further_get(loop, turns, waits):
    chunks = prompt(200)
    keys = [c.key for c in owned(chunks, 0, 2)]
    l1 = Memory(set(keys[:10]), set())
    rank = Rank(loop, l1, Tier(set(keys), set()))
    gate = rank.manager.async_serializer.lock = asyncio.Lock()
    if waits:  # upstream lets one GET run at a time; this one has pinned its chunks already
        loop.run_until_complete(gate.acquire())
    task = loop.create_task(rank.look("a", keys, answers(chunks, 0, 2)))
    for _ in range(turns):
        loop.run_until_complete(asyncio.sleep(0))
    gets = rank.l2.gets
    was_answered = "a" in rank.server.said
    rank.cancel("a")
    if waits:
        gate.release()
    loop.run_until_complete(task)
    rank.answer("a")
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    assert (l1.left(), rank.l2.left()) == (0, 0)
    assert rank.l2.gets <= gets + 16 or was_answered
    rank.cancel("a")
    states = rank.manager.event_manager.events.values()
    assert not any(ids for by_status in states for ids in by_status.values())
