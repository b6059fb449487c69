"""LMCache's own asynchronous lookup client, extended: time-outs, aborts, loads not worth it."""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from patched_engine.sharding import recompute, scheduler
from patched_engine.sharding.recompute import BELOW, LEAST_TOKENS, LOADS, PROBE_EVERY, Recompute
from patched_engine.sharding.settings import ShardingRefused
from tests.patched_engine.sharding.test_settings import config, metadata

pytest.importorskip("torch")
pytest.importorskip("lmcache")
RANKS = 2


class Ranks:
    """What the ranks are asked, and their answers, over LMCache's own sockets."""

    def __init__(self, engine_id: str) -> None:
        import msgspec
        import zmq
        from lmcache.v1.lookup_client import lmcache_async_lookup_client as upstream

        self._encode = lambda lookup_id, tokens: msgspec.msgpack.encode(
            upstream.LookupResponseMsg(lookup_id=lookup_id, num_hit_tokens=tokens)
        )

        def address(service: str, rank: int) -> str:
            return f"ipc://{upstream.get_zmq_rpc_path_lmcache(engine_id, service, 0, rank)}"

        self._context = zmq.Context()
        self.asked = []
        for rank in range(RANKS):
            socket = self._context.socket(zmq.PULL)
            socket.bind(address("lookup_worker", rank))
            self.asked.append(socket)
        self._answers = self._context.socket(zmq.PUSH)
        self._answers.connect(address("lookup_scheduler", 0))

    def answer(self, lookup_id: str, tokens: int) -> None:
        for _ in range(RANKS):
            self._answers.send(self._encode(lookup_id, tokens))

    def messages(self, rank: int) -> int:
        """How many have come since the last count."""
        count = 0
        while self.asked[rank].poll(200):
            self.asked[rank].recv()
            count += 1
        return count

    def end(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def parts(tmp_path, monkeypatch) -> Iterator[tuple[Any, Ranks]]:
    from lmcache.v1.lookup_client import lmcache_async_lookup_client as upstream

    # Where vLLM is not installed its sockets are in a folder that stays.
    in_folder = functools.partial(upstream.get_zmq_rpc_path_lmcache, base_url=str(tmp_path))
    monkeypatch.setattr(upstream, "get_zmq_rpc_path_lmcache", in_folder)
    engine_id = uuid.uuid4().hex
    ranks = Ranks(engine_id)
    facts = metadata(
        world_size=RANKS,
        local_world_size=RANKS,
        role="scheduler",
        engine_id=engine_id,
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )
    client = upstream.LMCacheAsyncLookupClient(
        config(
            enable_async_loading=True,
            lookup_timeout_ms=100,
            lookup_server_worker_ids=list(range(RANKS)),
        ),
        facts,
    )
    yield client, ranks
    client.running = False
    ranks.end()


def wait_for(client: Any, lookup_id: str) -> int:
    ends = time.monotonic() + 10
    while (found := client.lookup_cache(lookup_id)) is None:
        assert time.monotonic() < ends
        time.sleep(0.005)
    return found


def time_out(client: Any) -> None:
    assert client.lookup_cache("slow") == -1
    client.lookup(list(range(600)), lookup_id="slow")
    assert wait_for(client, "slow") == 0


def test_a_lookup_that_timed_out_may_be_asked_for_again(parts):
    client, _ = parts
    scheduler.extend(client)
    time_out(client)
    assert client.lookup_cache("slow") == 0


def test_upstream_ends_the_engine_there(parts):
    client, _ = parts
    time_out(client)
    with pytest.raises(KeyError):
        client.lookup_cache("slow")


@pytest.mark.parametrize("is_extended", [True, False], ids=["ours", "upstream"])
def test_a_lookup_given_up_is_told_to_the_ranks_at_once(parts, is_extended):
    client, ranks = parts
    if is_extended:
        scheduler.extend(client)
    time_out(client)
    for rank in range(RANKS):
        assert ranks.messages(rank) == (2 if is_extended else 1)  # the question, and its end


def load(client: Any, ranks: Ranks, name: str, seconds: float, tokens: int = LEAST_TOKENS) -> int:
    """One lookup that the ranks answer after so long; its answer, -1 where they were not asked."""
    assert client.lookup_cache(name) == -1
    if client.lookup(list(range(300)), lookup_id=name) == 0:
        assert client.lookup_cache(name) == 0
        client.clear_lookup_status(name)
        return -1
    timer = threading.Timer(seconds, ranks.answer, (name, tokens))
    timer.start()
    found = wait_for(client, name)
    timer.join()
    client.clear_lookup_status(name)
    return found


def test_prompts_are_computed_where_loading_is_slower_and_loaded_again_when_it_is_not(parts):
    client, ranks = parts
    client.lookup_backoff_time = 0.0
    client.config.lookup_timeout_ms = 10_000
    scheduler.extend(client, tokens_per_second=LEAST_TOKENS / 0.2)
    for i in range(LOADS):
        assert load(client, ranks, f"slow {i}", 0.25) == LEAST_TOKENS
    probes = []
    for i in range(LOADS * PROBE_EVERY):
        if load(client, ranks, f"later {i}", 0.001) != -1:
            probes.append(i)
    # The median turns with the third fast probe of the five that it is taken of.
    assert probes[:3] == [PROBE_EVERY * n - 1 for n in (1, 2, 3)]
    assert probes[3:] == list(range(probes[2] + 1, LOADS * PROBE_EVERY))


def test_without_the_switch_every_prompt_is_looked_for(parts):
    client, ranks = parts
    client.config.lookup_timeout_ms = 10_000
    scheduler.extend(client)
    for i in range(LOADS + 2):
        assert load(client, ranks, f"slow {i}", 0.02) == LEAST_TOKENS


class Times:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(*, shared: bool = False, tokens: int = LEAST_TOKENS, given_up: bool = False) -> bool:
    """Whether loads at a tenth of the rate end in declining."""
    clock = Times()
    judge = Recompute(LEAST_TOKENS / 1.0, clock)
    for i in range(LOADS):
        judge.began(f"{i}")
        if shared:
            judge.began(f"beside {i}")
        clock.now += 10.0
        judge.ended(f"{i}", None if given_up else tokens)
        if shared:
            judge.ended(f"beside {i}", tokens)
    return judge.is_declined()


def test_only_loads_that_say_something_are_measured():
    assert measured()
    assert not measured(shared=True)  # the queue would be counted twice
    assert not measured(tokens=LEAST_TOKENS - 1)
    assert not measured(given_up=True)


@pytest.mark.parametrize("value", ["fast", 0, -1, float("nan"), float("inf"), True, [1]])
def test_a_rate_that_is_none_is_refused(value):
    with pytest.raises(ShardingRefused, match=BELOW):
        recompute.rate_of(config(enable_async_loading=True, extra={BELOW: value}))


def test_it_needs_asynchronous_loading():
    with pytest.raises(ShardingRefused, match="enable_async_loading"):
        recompute.rate_of(config(extra={BELOW: 34_000}))
    assert recompute.rate_of(config(enable_async_loading=True, extra={BELOW: "34000"})) == 34_000
    assert recompute.rate_of(config()) == 0.0
