"""Late GETs in the header: whole keys, bounded, only while they are late."""

from __future__ import annotations

import threading
import time

import pytest

from exporters import page_layout as layout
from patched_engine.hooks import overdue as module
from patched_engine.hooks.overdue import MOST_BYTES, OVERDUE_SECONDS, OverdueKeys


class _Page:
    def __init__(self):
        self.facts = {}
        self.writes = 0

    def info(self):
        return dict(self.facts)

    def set_info(self, facts):
        self.facts.update(facts)
        self.writes += 1


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]

    class Time:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(module, "time", Time)
    return now


@pytest.mark.parametrize(("late", "listed"), [(0.99, 0), (1.0, 1)])
def test_only_what_is_late_is_listed(clock, late, listed):
    held = OverdueKeys()
    held.hold(3, "get", ["a", "b"])
    clock[0] += late * OVERDUE_SECONDS
    assert held.facts() == [{"kind": "get", "key_count": 2, "keys": ["a", "b"]}] * listed


def test_it_is_written_once_and_taken_out_again(clock):
    held, page = OverdueKeys(), _Page()
    held.poll(page)
    assert page.writes == 0
    held.hold(3, "get", ["a"])
    clock[0] += 1
    held.poll(page)
    held.poll(page)
    assert (page.writes, len(page.facts["overdue"])) == (1, 1)
    held.release(3)
    held.poll(page)
    assert (page.writes, page.facts["overdue"]) == (2, [])


def test_the_oldest_come_first_and_the_header_is_not_filled(clock):
    held = OverdueKeys()
    for slot in range(100):
        clock[0] += 0.001
        held.hold(slot, "get", [f"{slot}-{i}".ljust(100, "x") for i in range(20)])
    clock[0] += 1
    facts = held.facts()
    assert facts[0]["keys"][0].startswith("0-0")
    layout.pack_info(1, {"overdue": facts, "other": "y" * (layout.INFO_BYTES - MOST_BYTES - 2000)})
    assert sum(len(f["keys"]) for f in facts) > 40


def test_a_call_that_found_the_table_full_is_not_held(clock):
    held = OverdueKeys()
    held.hold(-1, "get", ["a"])
    clock[0] += 1
    assert held.facts() == []


def test_calls_that_come_and_go_meanwhile_do_no_harm():
    held = OverdueKeys()
    stop = threading.Event()

    def churn(first):
        while not stop.is_set():
            for slot in range(first, first + 16):
                held.hold(slot, "get", ["a"])
            for slot in range(first, first + 16):
                held.release(slot)

    threads = [threading.Thread(target=churn, args=(16 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert held.facts() == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
