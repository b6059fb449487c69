"""The event pool's bookkeeping, with events that a test can let pass; real ones need a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporters import page_layout as layout
from patched_engine.hooks.device_events import DeviceEvents
from patched_engine.page import Page
from tests.patched_engine.decode import decode

CUDA_EVENT = layout.BASIS_INDEX["cuda_event"]


class FakeEvent:
    """A CUDA event whose stream stands still until `passed`."""

    made = 0
    passed = False

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1

    def record(self) -> None: ...

    def query(self) -> bool:
        return FakeEvent.passed

    def elapsed_time(self, _end: FakeEvent) -> float:
        return 1.5


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    FakeEvent.made, FakeEvent.passed = 0, False
    made = Page.create(tmp_path, {}, ring_records=64)
    yield made
    made.close()


def test_durations_appear_once_the_device_has_passed(page: Page) -> None:
    taken = page.new_ring()
    assert taken is not None
    number, ring = taken
    events = DeviceEvents(FakeEvent, pairs=4)
    for sequence in (1, 2):
        pair = events.start()
        assert pair is not None
        events.finish(
            pair, ring, ring.begin(layout.OP_INDEX["all_gather"], CUDA_EVENT, sequence, 8), sequence
        )
    events.poll()
    assert [r.depart_ns for r in decode(page.path).rings[number]] == [0, 0]
    FakeEvent.passed = True
    events.poll()
    records = decode(page.path).rings[number]
    assert [r.duration_ns for r in records] == [1_500_000, 1_500_000]
    assert all(r.depart_ns for r in records)
    assert events.start() is not None
    assert FakeEvent.made == 4, "pairs are used again"


def test_the_pool_is_bounded(page: Page) -> None:
    events = DeviceEvents(FakeEvent, pairs=2)
    assert [events.start() is not None for _ in range(4)] == [True, True, False, False]
    assert FakeEvent.made == 4
