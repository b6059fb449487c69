"""The post's runaway from the post's inputs: one parameter set, and what a constant load gives."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from exporters import model
from runbooks.sizing import post
from runbooks.sizing.queue import Service, Stream, runs, simulate, spread

SEEDS = 200
WITHIN = 1.5
# What the post measured: medians by thirds, p99, most in flight.
MEASURED = {"first": 3.5, "second": 9.0, "last": 52.5, "p99": 83.7, "in flight": 59}
FIGURES = {
    "first": lambda run: run.thirds()[0],
    "second": lambda run: run.thirds()[1],
    "last": lambda run: run.thirds()[2],
    "p99": lambda run: run.percentile(0.99),
    "in flight": lambda run: run.most_in_flight,
}
STREAM = Stream(post.REQUESTS, post.SECONDS)
LOAD_BYTES = post.PROMPT_TOKENS / post.CHUNK_TOKENS * post.CHUNK_BYTES
LOAD_SECONDS = LOAD_BYTES / post.ONE_SHARD_BYTES_PER_SECOND


def service(slowdown=post.SLOWDOWN_PER_LOAD, loads=post.LOADS_WHEN_MEASURED, **changes):
    made = Service(
        shard_seconds=(LOAD_SECONDS / (1 + slowdown * (loads - 1)),),
        engine_seconds=0.0,
        recompute_seconds=post.PROMPT_TOKENS / post.PREFILL_TOKENS_PER_SECOND,
        give_up_seconds=post.GIVE_UP_SECONDS,
        slowdown_per_load=slowdown,
        most_loads=post.MOST_LOADS,
    )
    return dataclasses.replace(made, **changes)


@functools.cache
def of(mode, constant=False, seeds=SEEDS):
    return runs(mode, STREAM, service(slowdown=0.0) if constant else service(), seeds)


def distances(found):
    """How many times each figure's median is off the measured one, either way."""
    medians = {name: spread(found, figure).median for name, figure in FIGURES.items()}
    return {name: max(m / MEASURED[name], MEASURED[name] / m) for name, m in medians.items()}


@pytest.mark.parametrize("seeds", [40, SEEDS])
def test_one_parameter_set_gives_all_five_figures(seeds):
    off = distances(of("in-step", seeds=seeds))
    assert max(off.values()) <= WITHIN, off


def test_the_measured_figures_lie_in_the_spread():
    for name, figure in FIGURES.items():
        found = spread(of("in-step"), figure)
        assert found.low <= MEASURED[name] <= found.high, name
        assert found.low < found.median < found.high


def test_a_constant_load_gives_not_all_of_them():
    off = distances(of("in-step", constant=True))
    assert off["first"] > 2, off  # it starts as full as it ends


def test_about_half_give_up_in_the_background():
    found = of("background")
    share = spread(found, lambda run: run.gave_up_share).median
    assert 0.49 / 1.2 < share < 0.49 * 1.2
    p99 = spread(found, lambda run: run.percentile(0.99)).median
    assert 3.2 <= p99 <= 4.2  # the post: 3.2 to 3.8 s, and no more


def test_eight_shards_have_no_queue():
    part = LOAD_BYTES / post.EIGHT_SHARDS_BYTES_PER_SECOND
    eight = service(slowdown=0.0, shard_seconds=(part,) * post.EIGHT_SHARDS)
    for mode in ("in-step", "background"):
        run = simulate(mode, STREAM, eight, 1)
        assert run.percentile(0.5) == pytest.approx(part, rel=0.01)
        assert run.percentile(0.99) < 4 * part
        assert run.gave_up_share == 0


def test_a_load_without_a_queue_takes_what_it_takes():
    alone = Stream(3, 1e6)
    run = simulate("in-step", alone, service(engine_seconds=0.1), 0)
    assert set(map(lambda s: round(s, 9), run.latency_seconds)) == {
        round(service().shard_seconds[0] + 0.1, 9)
    }
    assert run.most_in_flight == 1


def test_the_mean_wait_is_that_of_a_queue_with_constant_service():
    """M/D/1 in its steady state: rho S / (2 (1 - rho)) above the service itself."""
    rho, seconds = 0.6, 0.1
    stream = Stream(20_000, 20_000 * seconds / rho)
    one = service(slowdown=0.0, shard_seconds=(seconds,))
    run = simulate("in-step", stream, one, 3)
    mean = sum(run.latency_seconds) / len(run.latency_seconds)
    assert mean - seconds == pytest.approx(rho * seconds / (2 * (1 - rho)), rel=0.1)


def test_a_load_given_up_goes_on_in_the_background():
    slow = service(slowdown=0.0, shard_seconds=(10.0,), recompute_seconds=0.2)
    run = simulate("background", Stream(2, 1e-6), slow, 0)
    assert run.gave_up_share == 1.0
    assert run.latency_seconds == pytest.approx((3.2, 3.4), abs=1e-5)
    # The second of two, 5 s apart, still waits for the first one's load to end.
    late = simulate("background", Stream(2, 20.0), dataclasses.replace(slow, give_up_seconds=12), 2)
    assert max(late.latency_seconds) > 10.0


def test_the_definitions_give_the_posts_figures():
    token_bytes = model.bytes_per_token(post.CHUNK_BYTES, post.CHUNK_TOKENS)
    assert token_bytes == pytest.approx(48e3, rel=0.02)
    per_second = model.break_even_bytes_per_second(token_bytes, post.PREFILL_TOKENS_PER_SECOND)
    assert round(per_second / 1e9, 1) == 2.6
    assert round(LOAD_SECONDS, 1) == 0.9
    rate = post.REQUESTS / post.SECONDS
    assert round(model.utilisation(rate, LOAD_SECONDS), 2) == 1.07
    eight = model.load_seconds(LOAD_BYTES, post.EIGHT_SHARDS_BYTES_PER_SECOND)
    assert round(eight * 1e3) == 74
    assert round(model.utilisation(rate, eight), 2) == 0.09


@pytest.mark.parametrize(
    ("chunks", "ranks", "shards", "expected"),
    [
        (64, 8, 8, (8,) * 8),
        (64, 8, 1, (64,)),
        (66, 8, 8, (9, 9, 8, 8, 8, 8, 8, 8)),
        (9, 8, 3, (4, 3, 2)),  # ranks 0, 3, 6 with 2, 1, 1 chunks; 1, 4, 7; 2, 5
        (8, 2, 4, (4, 4, 0, 0)),
        (0, 8, 2, (0, 0)),
    ],
)
def test_each_shard_has_the_chunks_of_its_ranks(chunks, ranks, shards, expected):
    assert model.shard_chunks(chunks, ranks, shards) == expected
    assert sum(expected) == chunks
