"""The cost model's figures from counters: rates, cold prefills, and what they refuse to say."""

from __future__ import annotations

import dataclasses

import pytest

from exporters import catalog, model
from exporters.metrics_model import model_samples, shard_model_samples
from exporters.model_joiner import KEPT_SECONDS, POINT_SECONDS, ModelJoiner
from exporters.snapshot import Engine, EngineModel, ModelPoint, Shard, Snapshot
from tests.detectors.pictures import worker

CHUNK = 256
CHUNK_BYTES = 12_400_000


class Traffic:
    """An engine of two ranks whose counters a test moves on."""

    def __init__(self):
        self.now = 0.0
        self.joiner = ModelJoiner()
        self.counters = dict.fromkeys(
            ("admitted", "done", "steps", "prefill_steps", "tokens", "loads"), 0
        )
        self.busy_ns = 0
        self.incarnation = 1
        self.roles = (("worker",), ("worker",), ("scheduler",))

    def tick(self, seconds=1.0, step_seconds=0.0, **moved):
        self.now += seconds
        for name, value in moved.items():
            self.counters[name] += value
        if step_seconds:
            self.counters["steps"] += 1
            self.counters["prefill_steps"] += 1
            self.busy_ns += int(step_seconds * 1e9)
        return self.joiner.update(self.processes(), self.now)

    def processes(self):
        c = self.counters
        of_worker = {
            "steps": c["steps"],
            "load_calls": c["loads"],
            "store_chunks": 8 * c["done"],
            "store_bytes": 8 * CHUNK_BYTES * c["done"],
        }
        of_scheduler = {
            "requests_admitted": c["admitted"],
            "requests_hit_none": c["done"],
            "prefill_steps": c["prefill_steps"],
            "scheduled_prefill_tokens": c["tokens"],
        }
        made = []
        for rank, roles in enumerate(self.roles):
            is_worker = "worker" in roles
            counters = dict(of_worker if is_worker else of_scheduler)
            # The first rank's steps are a little shorter: the busiest one counts.
            counters["step_nanoseconds"] = self.busy_ns - (rank == 0) * self.busy_ns // 10
            made.append(
                worker(
                    rank,
                    2,
                    page=f"{rank}.page",
                    roles=roles,
                    incarnation=self.incarnation,
                    counters=counters,
                    info={"chunk_tokens": CHUNK},
                )
            )
        return made

    def serve(self, seconds, per_second=1, step_seconds=0.5, **moved):
        for _ in range(seconds):
            found = self.tick(
                step_seconds=step_seconds, admitted=per_second, done=per_second, **moved
            )
        return found


def test_rho_is_what_comes_times_what_each_takes():
    rho = model.rho_of(Traffic().serve(200).points)
    assert rho.offered_per_second == pytest.approx(1.0, rel=0.01)
    assert rho.service_seconds == pytest.approx(0.5, rel=0.01)
    assert rho.rho == pytest.approx(0.5, rel=0.01)
    assert rho.seconds >= model.LEAST_SECONDS


def test_what_is_offered_counts_and_not_what_is_served():
    """Twice as much comes as is done: rho is 2, where the share of time in steps is 1."""
    traffic = Traffic()
    for _ in range(200):
        found = traffic.tick(step_seconds=1.0, admitted=2, done=1)
    assert model.rho_of(found.points).rho == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(
    ("seconds", "every", "is_said"),
    [(100, 1, False), (135, 1, True), (150, 6, False), (300, 10, True), (300, 11, False)],
)  # fmt: skip
def test_thirty_requests_and_two_minutes_are_needed(seconds, every, is_said):
    traffic = Traffic()
    for i in range(1, seconds + 2):
        comes = int(i % every == 0)
        found = traffic.tick(step_seconds=0.1, admitted=comes, done=comes)
    assert (model.rho_of(found.points) is not None) == is_said


def test_nothing_done_has_no_service_time():
    traffic = Traffic()
    for _ in range(150):
        found = traffic.tick(admitted=1)
    assert model.rho_of(found.points) is None


def test_it_follows_a_change_within_two_minutes():
    traffic = Traffic()
    traffic.serve(300, per_second=1)
    found = traffic.serve(140, per_second=3, step_seconds=0.25)
    assert model.rho_of(found.points).offered_per_second == pytest.approx(3, rel=0.05)


def test_points_are_few_and_end_now():
    found = Traffic().serve(1300)
    spans = [
        b.at_seconds - a.at_seconds for a, b in zip(found.points, found.points[1:], strict=False)
    ]
    assert found.points[-1].at_seconds == 1300
    assert found.points[-1].at_seconds - found.points[0].at_seconds <= KEPT_SECONDS
    assert set(spans[:-1]) == {POINT_SECONDS}


def test_a_restart_begins_anew():
    traffic = Traffic()
    traffic.serve(200)
    traffic.incarnation += 1
    traffic.tick()
    assert len(traffic.tick(seconds=6).points) == 1


def test_a_page_that_is_not_read_for_a_moment_is_no_restart():
    traffic = Traffic()
    before = traffic.serve(200).points
    whole, traffic.roles = traffic.roles, traffic.roles[1:]
    assert len(traffic.tick(admitted=1).points) >= len(before) - 1
    traffic.roles = whole
    after = traffic.tick(admitted=1).points
    assert after[0] == before[0]
    assert after[-1].admitted == before[-1].admitted + 2


def test_s_is_a_chunks_bytes_over_its_tokens():
    assert Traffic().tick().token_bytes == 0.0
    assert Traffic().serve(3).token_bytes == pytest.approx(CHUNK_BYTES / CHUNK)


def test_r_is_of_prompts_computed_while_no_load_ran():
    traffic = Traffic()
    traffic.serve(30, tokens=26_500)  # 53,000 a second
    found = traffic.serve(30, step_seconds=0.9, tokens=500, loads=1)
    rate = found.cold_tokens / found.cold_seconds
    assert rate == pytest.approx(53_000, rel=0.01)
    assert all(r == pytest.approx(53_000, rel=0.01) for r in found.cold_rates)
    assert len(found.cold_rates) >= 10
    # The tick after the last load is left out as well: its step may have been long for it.
    after = traffic.tick(step_seconds=5.0, tokens=100)
    assert after.cold_seconds == found.cold_seconds


def test_an_idle_engine_measures_nothing():
    traffic = Traffic()
    traffic.serve(10, tokens=26_500)
    before = traffic.serve(1, tokens=26_500).cold_seconds
    for _ in range(100):
        found = traffic.tick()
    assert found.cold_seconds - before <= 1.0


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ((("scheduler",),), "no worker of it has a page"),
        ((("worker",),), "its scheduler has no page"),
        ((("worker",), ("scheduler",)), ""),
    ],
)
def test_what_is_unseen_is_said(roles, says):
    traffic = Traffic()
    traffic.roles = roles
    found = traffic.serve(60)
    assert found.unseen.startswith(says) and bool(found.unseen) == bool(says)


def test_an_engine_that_decodes_has_no_rho_from_its_steps():
    traffic = Traffic()
    traffic.serve(60)
    for _ in range(60):
        traffic.counters["steps"] += 1
        found = traffic.tick(step_seconds=0.0)
    assert "decodes too" in found.unseen


def test_an_engine_without_the_request_hook_is_told_apart():
    traffic = Traffic()
    for _ in range(60):
        found = traffic.tick(step_seconds=0.1)
    assert "counts no request" in found.unseen


def values(found):
    samples = list(model_samples(dataclasses.replace(Engine("e", 2, ()), model=found)))
    assert all(len(s.labels) == len(s.metric.labels) for s in samples)
    return {s.metric.name: s.value for s in samples}


def test_the_metrics_are_the_model():
    traffic = Traffic()
    found = values(traffic.serve(200, tokens=26_500))
    of_engines = {m.name for m in catalog.MODEL_METRICS if m.emitted_by == "engine"}
    assert of_engines == set(found)
    assert found["stallscope_model_rho"] == pytest.approx(0.5, rel=0.01)
    assert found["stallscope_model_rho_evaluable"] == 1
    line = found["stallscope_model_break_even_bytes_per_second"]
    assert line == pytest.approx(CHUNK_BYTES / CHUNK * 53_000, rel=0.01)


def test_what_cannot_be_said_has_no_metric():
    assert values(EngineModel()) == {
        "stallscope_model_cold_prefill_tokens_total": 0,
        "stallscope_model_cold_prefill_seconds_total": 0,
        "stallscope_model_rho_evaluable": 0,
    }
    busy = tuple(ModelPoint(15.0 * i, 15 * i, 15 * i, 7.5 * i) for i in range(12))
    assert "stallscope_model_rho" in values(EngineModel(points=busy))
    assert "stallscope_model_rho" not in values(EngineModel(points=busy, unseen="it decodes too"))


def shard_at(seconds, gets, busy_seconds, run="r"):
    info = {
        "run_id": run,
        "used_active_time_main_thread": busy_seconds,
        "cmdstat_get": {"calls": gets, "usec": 1},
    }
    return Shard("redis://a:1", True, info=info, read_seconds=seconds, io_threads=1)


@pytest.mark.parametrize(
    ("gets", "run", "expected"),
    [(100, "r", 0.04), (30, "r", 0.04 * 100 / 30), (29, "r", None), (100, "other", None)],
)
def test_a_shards_service_time_is_busy_time_over_gets(gets, run, expected):
    before = Snapshot(0.0, 1.7e9, shards=(shard_at(0.0, 1000, 50.0, run),))
    now = shard_at(8.0, 1000 + gets, 54.0)
    picture = Snapshot(8.0, 1.7e9, shards=(now,), earlier=(before,))
    found = {s.labels: s.value for s in shard_model_samples(picture, now)}
    wanted = (
        {}
        if expected is None
        else dict.fromkeys((("redis://a:1", b) for b in ("lower", "upper")), expected)
    )
    assert found == pytest.approx(wanted)
