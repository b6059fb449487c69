"""queue-not-prefill: the wait is in the queue, and nobody stalls."""

from __future__ import annotations

import pytest

from detectors.queue_not_prefill import RULE
from tests.detectors.fleet_pictures import SIZE, less, picture, ranks, scheduler, since
from tests.detectors.pictures import NOW, group, quiet, second

END = int(NOW)
SECONDS = 10.0


def queue(firsts=4, ttft=40.0, waiting=9, step_share=0.9, late=False):
    moved = {"ttft_1_bucket_9": firsts, "ttft_1_nanoseconds": int(firsts * ttft * 1e9)}
    steps = {"step_nanoseconds": int(step_share * SECONDS * 1e9)}
    one = second if late else quiet
    seconds = [one(at, SIZE, *([1] if late else [])) for at in range(END - 40, END + 1)]
    gauges = {"requests_waiting": waiting}
    processes = (*ranks(counters=steps), scheduler(counters=moved, gauges=gauges))
    now = picture(processes, groups=(group(seconds, SIZE),))
    return since(now, SECONDS, lambda p: less(**p.counters)(p))


def test_what_waits_is_told():
    [finding] = RULE(queue()).findings
    assert (finding.severity, finding.rank) == ("warning", None)
    assert "first tokens take 40 s because 9 requests queue" in finding.summary
    assert all(e.value >= e.limit for e in finding.evidence)


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting": 2},
        {"ttft": 29.0, "firsts": 40},
        {"firsts": 2},
        {"ttft": 42.0, "firsts": 2, "step_share": 1.0},
        {"ttft": 30.0, "firsts": 3, "step_share": 3.0},  # a third of it is steps
        {"late": True},  # the steps stall: that is another finding
    ],
)
def test_turning_any_of_it_turns_the_verdict(changes):
    verdict = RULE(queue(**changes))
    assert (verdict.findings, verdict.abstained) == ((), "")


def test_one_picture_asks_for_another_only_where_requests_wait():
    assert RULE(picture((scheduler(gauges={"requests_waiting": 9}),))).again
    assert not RULE(picture((scheduler(),))).again
