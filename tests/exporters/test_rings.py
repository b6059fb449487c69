"""The ring cursor: every record once, open ones again, torn ones alone."""

from __future__ import annotations

import os

import pytest

from exporters.readers.rings import RETRIES, RingCursor
from tests.exporters.page_files import RING_RECORDS, PageFile


@pytest.fixture
def page(tmp_path):
    return PageFile(tmp_path / "a.page")


@pytest.fixture
def cursor(page):
    fd = os.open(page.path, os.O_RDONLY)
    yield RingCursor(fd, page.shape.ring_offset(0), RING_RECORDS)
    os.close(fd)


def _closed(page, first, last):
    for number in range(first, last + 1):
        page.record(number, number, number * 1000, number * 1000 + 5)


def _sequences(entries):
    return [entry.sequence for entry in entries]


def test_an_empty_ring_has_no_entries(cursor):
    assert cursor.read() == []


def test_each_closed_record_comes_once(page, cursor):
    _closed(page, 1, 3)
    assert _sequences(cursor.read()) == [1, 2, 3]
    assert cursor.read() == []
    _closed(page, 4, 5)
    assert _sequences(cursor.read()) == [4, 5]


def test_an_open_record_comes_again_until_it_is_closed(page, cursor):
    page.record(1, 1, 1000)
    assert [e.depart_ns for e in cursor.read()] == [0]
    assert [e.depart_ns for e in cursor.read()] == [0]
    page.record(1, 1, 1000, 1500)
    assert [e.depart_ns for e in cursor.read()] == [1500]
    assert cursor.read() == []


def test_an_asynchronous_record_is_not_waited_for(page, cursor):
    page.record(1, 1, 1000, basis="none")
    assert len(cursor.read()) == 1
    assert cursor.read() == []


def test_reading_follows_the_wrap(page, cursor):
    _closed(page, 1, RING_RECORDS - 2)
    cursor.read()
    _closed(page, RING_RECORDS - 1, RING_RECORDS + 10)
    assert _sequences(cursor.read()) == list(range(RING_RECORDS - 1, RING_RECORDS + 11))
    assert cursor.lost == 0


def test_a_late_reader_begins_with_the_oldest_that_stands(page, cursor):
    _closed(page, 1, 3 * RING_RECORDS)
    sequences = _sequences(cursor.read())
    assert sequences == list(range(2 * RING_RECORDS + 1, 3 * RING_RECORDS + 1))
    assert cursor.lost == 0  # nothing was promised before the first read


def test_what_was_overwritten_between_reads_is_lost(page, cursor):
    _closed(page, 1, 1)
    cursor.read()
    _closed(page, 2, RING_RECORDS + 11)
    assert len(cursor.read()) == RING_RECORDS
    assert cursor.lost == 10


def test_an_open_record_that_was_overwritten_is_lost(page, cursor):
    page.record(1, 1, 1000)
    cursor.read()
    _closed(page, 2, RING_RECORDS + 1)
    assert 1 not in _sequences(cursor.read())
    assert cursor.lost == 1


def test_a_torn_record_is_left_out_alone_and_counted_once(page, cursor):
    _closed(page, 1, 4)
    page.record(3, 3, 3000, 3005, torn=True, move_head=False)
    assert _sequences(cursor.read()) == [1, 2, 4]
    assert cursor.read() == []
    assert cursor.torn == 1


def test_a_torn_record_that_heals_is_taken(page, cursor):
    _closed(page, 1, 2)
    page.record(2, 2, 2000, 2005, torn=True)
    assert _sequences(cursor.read()) == [1]
    assert cursor.torn_at_rest() == 0  # it may be under way
    page.record(2, 2, 2000, 2005)
    assert _sequences(cursor.read()) == [2]
    assert cursor.torn_at_rest() == 0


def test_a_torn_record_is_at_rest_when_it_stays_or_is_far_behind(page, cursor, tmp_path):
    _closed(page, 1, 2)
    page.record(2, 2, 2000, 2005, torn=True)
    cursor.read()
    cursor.read()
    assert cursor.torn_at_rest() == 1

    old = PageFile(tmp_path / "old.page", ring_records=256)
    _closed(old, 1, 200)
    old.record(10, 10, 10, 20, torn=True, move_head=False)
    fd = os.open(old.path, os.O_RDONLY)
    first_look = RingCursor(fd, old.shape.ring_offset(0), 256)
    first_look.read()
    assert first_look.torn_at_rest() == 1
    os.close(fd)


def test_a_torn_record_is_read_again_at_once(page, monkeypatch):
    """The checksum that fails while the writer is at it is right at the next read."""
    page.record(1, 1, 1000, 1005, torn=True)
    fd = os.open(page.path, os.O_RDONLY)
    cursor = RingCursor(fd, page.shape.ring_offset(0), RING_RECORDS)
    reads = []
    real = os.pread

    def pread(descriptor, count, offset):
        reads.append(offset)
        if len(reads) == 1 + RETRIES:
            page.record(1, 1, 1000, 1005)
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert _sequences(cursor.read()) == [1]
    assert cursor.torn == 0
    os.close(fd)


def test_a_number_taken_but_not_yet_written_comes_later(page, cursor):
    _closed(page, 1, 1)
    page.head(3)  # 2 is under way in another thread, 3 is written
    page.record(3, 3, 3000, 3005)
    assert _sequences(cursor.read()) == [1, 3]
    page.record(2, 2, 2000, 2005, move_head=False)
    assert _sequences(cursor.read()) == [2]
    assert (cursor.torn, cursor.lost) == (0, 0)


def test_a_departure_from_the_lap_before_is_no_departure(page, cursor):
    page.record(1, 1, 5000, 4000)
    assert [e.depart_ns for e in cursor.read()] == [0]
