"""A folder of pages: what is read, what is unseen and why, and what survives from tick to tick."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from exporters import page_layout as layout
from exporters import reasons
from exporters.readers.pages import PageFolder
from tests.exporters.page_files import SECOND, PageFile, locked, worker_info


@pytest.fixture
def folder(tmp_path):
    made = PageFolder(tmp_path)
    yield made
    made.close()


def _read(folder):
    return folder.read(time.monotonic_ns())


def _reasons(sample):
    return [unseen.reason for unseen in sample.unseen]


def _is_one_line(text):
    return text and "\n" not in text


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_no_folder_of_pages(tmp_path, kind):
    path = tmp_path / "pages"
    if kind == "file":
        path.write_bytes(b"")
    elif kind == "empty":
        path.mkdir()
    sample = _read(PageFolder(path))
    assert sample.pages == ()
    wanted = reasons.EMPTY_FOLDER if kind == "empty" else reasons.MISSING_FOLDER
    assert _reasons(sample) == [wanted]
    assert _is_one_line(sample.unseen[0].detail) and _is_one_line(sample.unseen[0].mend)


def test_a_whole_page(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(2, 4), incarnation=77)
    now = time.monotonic_ns()
    page.count("store_bytes", 10, lane=0)
    page.count("store_bytes", 5, lane=layout.SHARED_LANE)
    page.count("steps", 3)
    page.mark("step_finished", now - 2 * SECOND)
    page.operation(1, chunks=8, expected=2)
    page.pending(
        5, layout.PendingRecord(9, 9, "lookup", now - 4 * SECOND, 3 * SECOND, 7, "key", (11, 12))
    )
    page.record(1, 1, 100, 200)
    [sample] = folder.read(now).pages
    process = sample.process
    assert (process.engine_id, process.roles, process.rank) == ("engine-a", ("worker",), 2)
    assert (process.world_size, process.incarnation) == (4, 77)
    assert process.counters["store_bytes"] == 15
    assert process.counters["steps"] == 3
    assert process.marks["step_finished"] == pytest.approx((now - 2 * SECOND) / SECOND)
    assert "store_started" not in process.marks
    [pending] = process.pending
    assert (pending.id, pending.kind, pending.first_key) == (9, "lookup", "key")
    assert pending.age_seconds == pytest.approx(4.0)
    assert pending.timeout_seconds == 3.0
    assert pending.connection_ids == (11, 12)
    [operation] = process.operations
    assert (operation.kind, operation.chunks, operation.expected_chunks) == ("store", 8, 2)
    assert operation.tier == "l1"
    assert [e.sequence for e in sample.entries[0]] == [1]


def test_liveness(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    assert _read(folder).pages[0].process.liveness == "dead"
    with locked(page.path):
        assert _read(folder).pages[0].process.liveness == "alive"
        page.mark("heartbeat", time.monotonic_ns() - 4 * SECOND)
        frozen = _read(folder).pages[0].process
        assert frozen.liveness == "frozen"
        assert frozen.heartbeat_age_seconds == pytest.approx(4.0, abs=0.5)
    assert _read(folder).pages[0].process.liveness == "dead"


def test_asking_for_the_lock_never_takes_it(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    _read(folder)
    with locked(page.path):  # would block for ever were the lock held
        pass


def test_a_truncated_page_is_unseen_and_the_others_are_read(tmp_path, folder):
    PageFile(tmp_path / "a.page", worker_info(0, 2))
    cut = PageFile(tmp_path / "b.page", worker_info(1, 2))
    assert len(_read(folder).pages) == 2
    os.truncate(cut.path, 100_000)
    sample = _read(folder)
    assert [p.process.rank for p in sample.pages] == [0]
    assert _reasons(sample) == [reasons.TRUNCATED]
    assert "b.page" in sample.unseen[0].detail
    assert _is_one_line(sample.unseen[0].detail) and _is_one_line(sample.unseen[0].mend)


@pytest.mark.parametrize("size", [0, 5, 50])
def test_a_page_shorter_than_a_header(tmp_path, folder, size):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    os.truncate(page.path, size)
    assert _reasons(_read(folder)) == [reasons.TRUNCATED]


def test_a_page_cut_between_two_reads_of_one_tick(tmp_path, folder, monkeypatch):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    page.record(1, 1, 100, 200)
    _read(folder)
    real = os.pread

    def pread(descriptor, count, offset):
        return real(descriptor, count, offset)[: count // 2]

    monkeypatch.setattr(os, "pread", pread)
    assert _reasons(_read(folder)) == [reasons.TRUNCATED]


def test_a_future_version(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    page.write(bytes([layout.VERSION + 1]), 8)
    sample = _read(folder)
    assert _reasons(sample) == [reasons.FUTURE_VERSION]
    assert str(layout.VERSION + 1) in sample.unseen[0].detail


@pytest.mark.parametrize("content", [b"hello, this is a text file", os.urandom(8192)])
def test_not_a_page(tmp_path, folder, content):
    (tmp_path / "a.page").write_bytes(content)
    assert _reasons(_read(folder)) == [reasons.NOT_A_PAGE]


def test_a_torn_header(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    page.write(b"\xff", 30)
    assert _reasons(_read(folder)) == [reasons.TORN]


@pytest.mark.parametrize("records", [0, 1 << 40])
def test_a_header_that_states_a_wrong_size(tmp_path, folder, records):
    header = layout.Header(1, 1, 0, 0, "", records, 4096)
    (tmp_path / "a.page").write_bytes(layout.pack_header(header))
    assert _reasons(_read(folder)) == [reasons.NOT_A_PAGE]


def test_another_boot(tmp_path, folder):
    PageFile(tmp_path / "a.page", worker_info(0, 2), boot="0" * 36)
    sample = _read(folder)
    assert _reasons(sample) == [reasons.OTHER_BOOT]
    assert sample.pages == ()


def test_what_is_no_file_is_never_waited_for(tmp_path, folder):
    os.mkfifo(tmp_path / "fifo.page")
    (tmp_path / "folder.page").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "link.page")
    sample = _read(folder)
    assert sorted(_reasons(sample)) == sorted(
        [reasons.NOT_A_PAGE, reasons.NOT_A_PAGE, reasons.UNREADABLE]
    )


def test_the_newest_page_of_an_identity_wins(tmp_path, folder):
    now = time.monotonic_ns()
    PageFile(tmp_path / "b.page", worker_info(0, 2), incarnation=1, start_ns=now - 50 * SECOND)
    newer = PageFile(tmp_path / "a.page", worker_info(0, 2), incarnation=2, start_ns=now)
    PageFile(tmp_path / "c.page", worker_info(1, 2), incarnation=3, start_ns=now - 50 * SECOND)
    with locked(newer.path):
        sample = _read(folder)
    assert {(p.process.rank, p.process.incarnation) for p in sample.pages} == {(1, 3), (0, 2)}
    assert sample.unseen == ()


def test_two_running_processes_of_one_identity_are_told(tmp_path, folder):
    now = time.monotonic_ns()
    older = PageFile(tmp_path / "a.page", worker_info(0, 2), start_ns=now - SECOND)
    newer = PageFile(tmp_path / "b.page", worker_info(0, 2), start_ns=now)
    with locked(older.path, newer.path):
        sample = _read(folder)
    assert len(sample.pages) == 1
    assert _reasons(sample) == [reasons.DUPLICATE]


def test_a_page_that_goes_away_is_let_go(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    _read(folder)
    before = len(os.listdir("/proc/self/fd"))
    page.path.unlink()
    assert _reasons(_read(folder)) == [reasons.EMPTY_FOLDER]
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_page_that_vanishes_between_the_listing_and_the_reading(tmp_path, folder, monkeypatch):
    PageFile(tmp_path / "a.page", worker_info(0, 2))
    gone = PageFile(tmp_path / "b.page", worker_info(1, 2)).path
    real = os.open

    def unlink_and_open(path, *arguments):
        gone.unlink(missing_ok=True)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", unlink_and_open)
    sample = _read(folder)
    assert [p.process.rank for p in sample.pages] == [0]
    assert _reasons(sample) == []  # its process has ended, which is no fault of the page


def test_descriptors_do_not_grow(tmp_path, folder):
    PageFile(tmp_path / "a.page", worker_info(0, 2))
    (tmp_path / "bad.page").write_bytes(b"no page at all")
    _read(folder)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        _read(folder)
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_file_under_the_same_name_is_another_page(tmp_path, folder):
    PageFile(tmp_path / "a.page", worker_info(0, 2), incarnation=1)
    _read(folder)
    PageFile(tmp_path / "b.tmp", worker_info(0, 2), incarnation=2).path.rename(tmp_path / "a.page")
    assert [p.process.incarnation for p in _read(folder).pages] == [2]


def test_new_facts_are_seen_and_torn_ones_do_not_replace_the_old(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    _read(folder)
    page.set_info(worker_info(0, 2, model="m"))
    assert _read(folder).pages[0].process.info["model"] == "m"
    page.set_info(worker_info(0, 2, model="n"))
    page.write(b"\xff", page.shape.info_offset + 40)
    assert _read(folder).pages[0].process.info["model"] == "m"


@pytest.mark.parametrize(
    "groups",
    [
        "all",
        [3],
        [{"ring": 0}],
        [{"ring": 99, "name": "g", "ranks": [0, 1]}],
        [{"ring": 0, "name": "g", "ranks": [0, 0]}],
        [{"ring": 0, "name": "g", "ranks": [0]}],
    ],
)
def test_malformed_groups_are_left_out(tmp_path, folder, groups):
    PageFile(tmp_path / "a.page", worker_info(0, 2, groups=groups))
    assert _read(folder).pages[0].seats == ()


def test_facts_of_wrong_types_do_not_stop_it(tmp_path, folder):
    info = {"engine_id": 3, "roles": "worker", "rank": "x", "world_size": None}
    PageFile(tmp_path / "a.page", info)
    process = _read(folder).pages[0].process
    assert (process.engine_id, process.roles, process.rank, process.world_size) == (
        "3",
        (),
        None,
        0,
    )


def test_operations_are_followed_over_their_wrap(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    count = layout.OPERATION_COUNT
    for number in range(1, 11):
        page.operation(number, end_ns=number * SECOND)
    assert len(_read(folder).pages[0].process.operations) == 10
    for number in range(11, count + 6):
        page.operation(number, end_ns=number * SECOND)
    ends = [round(o.end_seconds) for o in _read(folder).pages[0].process.operations]
    assert ends == list(range(6, count + 6))


def test_a_torn_operation_and_a_torn_pending_entry_are_counted_alone(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    page.operation(1)
    page.operation(2, torn=True)
    record = layout.PendingRecord(1, 1, "get", 0, 0, 1, "key", ())
    page.pending(0, record)
    page.pending(1, dataclasses.replace(record, seq=2))
    page.write(b"\xff", page.shape.pending_offset + layout.PENDING_BYTES + 60)
    first = _read(folder)
    assert len(first.pages[0].process.operations) == 1
    assert len(first.pages[0].process.pending) == 1
    assert first.pages[0].process.torn_records == 2
    assert first.unseen == ()  # each may have been under way
    again = _read(folder)
    assert again.pages[0].process.torn_records == 2
    assert _reasons(again) == [reasons.TORN]


def test_a_completed_operation_is_no_longer_pending(tmp_path, folder):
    page = PageFile(tmp_path / "a.page", worker_info(0, 2))
    page.pending(3, layout.PendingRecord(1, 1, "get", 0, 0, 1, "key", ()))
    assert len(_read(folder).pages[0].process.pending) == 1
    page.write(layout.WORD.pack(0), page.shape.pending_offset + 3 * layout.PENDING_BYTES)
    assert _read(folder).pages[0].process.pending == ()
