"""The writer's records, lanes, marks and pending table, read back from the file's bytes."""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporters import page_layout as layout
from patched_engine.page import Page
from tests.patched_engine.decode import decode

STORE_BYTES = layout.COUNTER_INDEX["store_bytes"]
ALL_GATHER = layout.OP_INDEX["all_gather"]
HOST = layout.BASIS_INDEX["host"]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page.create(tmp_path, {"engine_id": "e", "rank": 3}, ring_records=16)
    yield made
    made.close()


def test_a_page_names_its_process(page: Page) -> None:
    seen = decode(page.path)
    assert seen.header.pid == os.getpid()
    assert seen.header.incarnation == page.incarnation
    assert abs(seen.header.wall_offset_ns - (time.time_ns() - time.monotonic_ns())) < 10**9
    assert seen.info == {"engine_id": "e", "rank": 3}
    assert page.path.stat().st_size == seen.header.page_bytes


def test_its_blocks_are_reserved(page: Page) -> None:
    # A sparse file would pass every other test, and kill the engine on a full tmpfs.
    assert page.path.stat().st_blocks * 512 >= page.path.stat().st_size


def test_counters_are_exact_under_many_threads(page: Page) -> None:
    threads, each = layout.LANE_COUNT + 8, 2_000
    start = threading.Barrier(threads)

    def count() -> None:
        start.wait()  # all alive at once: more threads than lanes
        for _ in range(each):
            page.add(STORE_BYTES, 3)
        start.wait()

    workers = [threading.Thread(target=count) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    time.sleep(1.2)  # the heartbeat adds what threads without a lane have counted
    seen = decode(page.path)
    assert seen.counters["store_bytes"] == threads * each * 3
    assert seen.lanes_used == layout.LANE_COUNT


def test_a_dead_threads_lane_is_used_again(page: Page) -> None:
    for _ in range(3 * layout.LANE_COUNT):
        worker = threading.Thread(target=page.add, args=(STORE_BYTES,))
        worker.start()
        worker.join()
    seen = decode(page.path)
    assert seen.counters["store_bytes"] == 3 * layout.LANE_COUNT
    assert seen.lanes_used < layout.LANE_COUNT


def test_ring_keeps_the_newest_and_says_what_is_open(page: Page) -> None:
    taken = page.new_ring()
    assert taken is not None
    number, ring = taken
    for sequence in range(1, 20):
        ring.end(ring.begin(ALL_GATHER, HOST, sequence, 512))
    before_ns = time.monotonic_ns()
    ring.begin(ALL_GATHER, HOST, 20, 512)
    records = decode(page.path).rings[number]
    assert [r.sequence for r in records] == list(range(5, 21))
    assert all(r.op == "all_gather" and r.basis == "host" and r.bytes == 512 for r in records)
    assert all(r.depart_ns >= r.arrive_ns for r in records[:-1])
    assert records[-1].depart_ns == 0
    assert records[-1].arrive_ns >= before_ns


def test_device_durations_reach_only_their_own_record(page: Page) -> None:
    taken = page.new_ring()
    assert taken is not None
    number, ring = taken
    offset = ring.begin(ALL_GATHER, layout.BASIS_INDEX["cuda_event"], 1, 0)
    ring.end_with_duration(offset, 1, 777)
    assert decode(page.path).rings[number][0].duration_ns == 777
    late = ring.begin(ALL_GATHER, HOST, 2, 0)
    for sequence in range(3, 19):  # the ring comes round and reuses that record
        ring.begin(ALL_GATHER, HOST, sequence, 0)
    ring.end_with_duration(late, 2, 999)
    assert all(r.duration_ns == 0 for r in decode(page.path).rings[number])


def test_all_rings_can_be_taken_once(page: Page) -> None:
    assert [page.new_ring() is not None for _ in range(layout.RING_COUNT + 2)] == [
        *[True] * layout.RING_COUNT,
        False,
        False,
    ]


def test_operations_are_kept_in_order(page: Page) -> None:
    for i in range(layout.OPERATION_COUNT + 5):
        page.operation(layout.KIND_INDEX["store"], layout.TIER_INDEX["l1"], 10, 20, i, 2, 99, 1)
    seen = decode(page.path).operations
    assert [o.tokens for o in seen] == list(range(5, layout.OPERATION_COUNT + 5))
    assert (seen[0].kind, seen[0].tier, seen[0].bytes, seen[0].expected_chunks) == (
        "store",
        "l1",
        99,
        1,
    )


def test_pending_stands_until_completed(page: Page) -> None:
    long_key = "model@8@3@" + "f" * 100
    first = page.submit("exists", 3_000_000_000, 64, long_key, (7, 8))
    second = page.submit("get", 10_000_000_000, 1, "k")
    page.complete(second)
    (entry,) = decode(page.path).pending
    assert (entry.kind, entry.key_count, entry.timeout_ns) == ("exists", 64, 3_000_000_000)
    assert entry.first_key == long_key[: layout.FIRST_KEY_BYTES]
    assert entry.connection_ids == (7, 8)
    page.complete(first)
    assert decode(page.path).pending == []


def test_a_full_pending_table_drops_and_counts(page: Page) -> None:
    slots = [page.submit("get", 0, 1, "k") for _ in range(layout.PENDING_COUNT + 3)]
    assert slots[-3:] == [-1, -1, -1]
    for slot in slots:
        page.complete(slot)
    seen = decode(page.path)
    assert seen.counters["pending_drops"] == 3
    assert seen.pending == []
    assert page.submit("get", 0, 1, "k") >= 0


def test_what_cannot_be_packed_takes_no_slot(page: Page) -> None:
    for _ in range(2 * layout.PENDING_COUNT):
        with pytest.raises(struct.error):
            page.submit("get", -1, 1, "k")
    assert page.submit("get", 0, 1, "k") >= 0


def test_facts_that_are_no_json_leave_nothing_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(TypeError):
        Page.create(tmp_path, {"bad": object()})
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_facts_that_nest_too_deep_are_torn() -> None:
    text = b"[" * 16_000
    head = struct.pack("<QI", 1, len(text))
    packed = head + struct.pack("<I", zlib.crc32(layout.WORD.pack(1) + text)) + text
    assert layout.unpack_info(packed) is None


def test_facts_are_merged_and_too_many_are_refused(page: Page) -> None:
    page.set_info({"rank": 4, "model": "m"})
    assert decode(page.path).info == {"engine_id": "e", "rank": 4, "model": "m"}
    with pytest.raises(ValueError, match="a page holds"):
        page.set_info({"model": "x" * layout.INFO_BYTES})
    assert decode(page.path).info["model"] == "m"


def test_heartbeat_runs_by_itself(page: Page) -> None:
    first = decode(page.path).marks["heartbeat"]
    polled: list[int] = []
    page.add_poller(lambda: polled.append(1))
    page.add_poller(lambda: 1 // 0)  # a poller's fault must not stop the heart
    time.sleep(2.2)
    assert decode(page.path).marks["heartbeat"] > first
    assert polled


def test_half_written_records_are_seen_as_torn(page: Page) -> None:
    taken = page.new_ring()
    assert taken is not None
    number, ring = taken
    ring.begin(ALL_GATHER, HOST, 1, 512)
    slot = page.submit("get", 5, 1, "key")
    page.operation(1, 1, 10, 20, 30, 2, 99, 1)
    shape = layout.Layout(16)
    data = bytearray(page.path.read_bytes())
    ring_at = shape.ring_offset(number) + layout.RING_HEAD_BYTES
    pending_at = shape.pending_offset + slot * layout.PENDING_BYTES
    for at, size, unpack in (
        (ring_at, layout.RING_SIGNED.size, layout.unpack_ring_record),
        (shape.operations_offset, layout.OPERATION_SIGNED.size, layout.unpack_operation),
        (pending_at, layout.PENDING_SIGNED.size, layout.unpack_pending),
    ):
        assert unpack(bytes(data), at) is not None
        for position in range(1, size):  # byte 0 alone makes it another sequence, not an empty one
            torn = bytearray(data)
            torn[at + position] ^= 0xFF
            record = unpack(bytes(torn), at)
            assert record is None or record.seq == 0
