"""The model's p50 and p99 beside those of lab runs, and a lab's ramp past 1 and its warning."""

from __future__ import annotations

import os
import time

import pytest

from detectors.rho_rising import RULE
from exporters.evaluator import Evaluator
from runbooks.sizing.queue import Service, Stream, runs, spread
from tests.lab.runs import end, leftovers, run, start
from tests.runbooks.sizing.soak import lab_queue

pytestmark = pytest.mark.soak

RUN_SECONDS = int(os.environ.get("STALLSCOPE_SIZING_SECONDS", "240"))
RAMP_SECONDS = int(os.environ.get("STALLSCOPE_RAMP_SECONDS", "600"))
CALM_SECONDS = 180
LOW_RHO, HIGH_RHO = 0.2, 1.1
SERVICE_SECONDS = lab_queue.STEP_SECONDS + lab_queue.OVERHEAD_SECONDS


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
def test_the_model_beside_the_lab(tmp_path, rho):
    trace = tmp_path / "trace.jsonl"
    lab_queue.write_trace(trace, lambda at: rho, RUN_SECONDS, 5, SERVICE_SECONDS)
    arguments = (*lab_queue.ARGUMENTS, "--requests", str(trace), "--seconds", str(RUN_SECONDS + 5))
    result = run(tmp_path, *arguments)
    rows = result["requests"]["each"][lab_queue.DOCUMENTS :]
    service, load = lab_queue.service_seconds(result)
    stream = Stream(len(rows), RUN_SECONDS)
    asked = Service((load,), service - load, service, 3.0, 0.0, 1)
    found = runs("in-step", stream, asked, 40)
    lab = [row["ttft_seconds"] for row in rows]
    print(f"\nrho {len(rows) / RUN_SECONDS * service:.2f} (asked {rho}), {len(rows)} requests")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        model = spread(found, lambda r, share=share: r.percentile(share))
        measured = lab_queue.percentile(lab, share)
        print(
            f"{name}: lab {measured:.3f} s, model {model.median:.3f} s "
            f"({model.low:.3f} to {model.high:.3f}), ratio {model.median / measured:.2f}"
        )
        assert 0.4 < model.median / measured < 2.5


def watched(tmp_path, rho, seconds, seed):
    """One lab run, looked at each second: when the rule first spoke and what it said, counted from
    the first request (None, [] if never), and the run's report."""
    trace, pages = tmp_path / "trace.jsonl", tmp_path / "pages"
    pages.mkdir()
    lab_queue.write_trace(trace, rho, seconds, seed, SERVICE_SECONDS)
    lab = start(
        tmp_path,
        *(*lab_queue.ARGUMENTS, "--requests", str(trace), "--pages", str(pages)),
        *("--seconds", str(seconds + 5)),
    )
    warned_at, texts, began = None, [], None
    try:
        lab.wait_for("--valkey")
        evaluator = Evaluator(pages, (), (RULE,))
        while lab.process.poll() is None and (began is None or time.monotonic() < began + seconds):
            time.sleep(1.0)
            evaluation = evaluator.tick()
            engines = evaluation.snapshot.engines
            points = engines[0].model.points if engines else ()
            if began is None and points and points[-1].admitted:
                began = time.monotonic()
            if evaluation.findings and warned_at is None:
                warned_at = time.monotonic() - began
                texts = [e.text for e in evaluation.findings[0].evidence]
        evaluator.close()
        result = lab.result(120)
    finally:
        end(lab)
    assert leftovers(lab) == []
    return warned_at, texts, result


@pytest.mark.timeout(2400)
def test_a_ramp_is_warned_of_before_it_hurts(tmp_path):
    """Calm at rho 0.2, then up to 1.1: the warning comes before the first minute whose p99 is twice
    that of the calm, and no warning comes in the calm."""

    def rho(at):
        return LOW_RHO + (HIGH_RHO - LOW_RHO) * max(0.0, at - CALM_SECONDS) / RAMP_SECONDS

    seconds = CALM_SECONDS + RAMP_SECONDS
    warned_at, texts, result = watched(tmp_path, rho, seconds, 7)
    rows = result["requests"]["each"][lab_queue.DOCUMENTS :]
    late = result["requests"]["unfinished_arrival_seconds"]
    service, _ = lab_queue.service_seconds(result)

    def p99(begin):
        seen = [r["ttft_seconds"] for r in rows if begin <= r["arrival_seconds"] < begin + 60]
        seen += [float("inf") for at in late if begin <= at < begin + 60]
        return lab_queue.percentile(seen, 0.99)

    calm = lab_queue.percentile(
        [r["ttft_seconds"] for r in rows if r["arrival_seconds"] < CALM_SECONDS], 0.99
    )
    minutes = [(at, p99(at)) for at in range(CALM_SECONDS, seconds, 60)]
    print(f"\nmean service {service:.3f} s; p99 at rho {LOW_RHO}: {calm:.3f} s")
    for at, value in minutes:
        real = rho(at + 30) * service / SERVICE_SECONDS
        print(f"  {at - CALM_SECONDS:>4} s  rho {real:.2f}  p99 {value:.3f} s")
    bad = next(at for at, value in minutes if value > 2 * calm)
    print(f"first minute beyond twice the calm's: from {bad - CALM_SECONDS} s of the ramp")
    assert warned_at is not None
    print(f"warned at {warned_at - CALM_SECONDS:.0f} s of the ramp: {'; '.join(texts)}")
    assert warned_at > CALM_SECONDS
    assert warned_at <= bad


@pytest.mark.timeout(1200)
def test_a_burst_that_the_queue_absorbs_is_not_warned_of(tmp_path):
    """A minute beyond 1 in an engine that is otherwise at 0.3."""

    def rho(at):
        return HIGH_RHO if 180 <= at < 240 else 0.3

    warned_at, texts, result = watched(tmp_path, rho, 360, 11)
    rows = result["requests"]["each"][lab_queue.DOCUMENTS :]
    waits = [r["ttft_seconds"] for r in rows if 180 <= r["arrival_seconds"] < 300]
    service, _ = lab_queue.service_seconds(result)
    print(f"\nmean service {service:.3f} s; p99 around the burst {max(waits):.3f} s; {texts}")
    assert warned_at is None
    assert not result["requests"]["unfinished"]
