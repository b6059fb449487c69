"""Why a rank is late: what the cgroup, the scheduler, the disk and the collector took from it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest

from exporters import page_layout as layout
from exporters.readers.pages import PageFolder
from patched_engine import recorder
from patched_engine.hooks.lateness import Collections, Lateness, find_cpu_stat
from patched_engine.page import Page


@pytest.fixture
def page(tmp_path, monkeypatch):
    made = Page.create(tmp_path, {"roles": ["worker"]})
    monkeypatch.setattr(recorder, "_page", made)
    yield made
    made.close()


def _counted(page, name):
    lanes = [page._lane(i)[layout.COUNTER_INDEX[name]] for i in range(layout.LANE_COUNT)]
    return sum(lanes)


def _tasks(folder, nanoseconds):
    own = folder / "task" / str(os.getpid())
    own.mkdir(parents=True, exist_ok=True)
    (own / "schedstat").write_text(f"123 {nanoseconds} 9\n")
    return folder / "task"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("usage_usec 5\nnr_throttled 2\nthrottled_usec {}\n", 7_000),
        ("nr_periods 1\nnr_throttled 2\nthrottled_time {}\n", 7),
        ("usage_usec {}\n", 0),
    ],
)
def test_throttled_time_of_either_version(page, tmp_path, text, expected):
    stat = tmp_path / "cpu.stat"
    reader = Lateness(stat, _tasks(tmp_path, 50))
    stat.write_text(text.format(100))
    reader.poll()
    assert _counted(page, "throttled_nanoseconds") == 0, "what was before is not this page's"
    stat.write_text(text.format(107))
    _tasks(tmp_path, 90)
    reader.poll()
    reader.poll()
    assert _counted(page, "throttled_nanoseconds") == expected
    assert _counted(page, "runqueue_nanoseconds") == 40


def test_sources_that_are_not_there_count_nothing(page, tmp_path):
    reader = Lateness(tmp_path / "none", tmp_path / "none")
    for _ in range(2):
        reader.poll()
    (tmp_path / "bad").write_text("throttled_usec much\n")
    Lateness(tmp_path / "bad", tmp_path).poll()
    Lateness(None, tmp_path).poll()
    assert _counted(page, "throttled_nanoseconds") == _counted(page, "runqueue_nanoseconds") == 0


def test_counters_that_went_back_count_nothing(page, tmp_path):
    reader = Lateness(None, _tasks(tmp_path, 100))
    reader.poll()
    _tasks(tmp_path, 10)
    reader.poll()
    _tasks(tmp_path, 15)
    reader.poll()
    assert _counted(page, "runqueue_nanoseconds") == 5


def test_collections_are_timed(page, monkeypatch):
    callback = Collections()
    gc.callbacks.append(callback)
    try:
        began = time.monotonic_ns()
        gc.collect()
        took = time.monotonic_ns() - began
    finally:
        gc.callbacks.remove(callback)
    assert _counted(page, "gc_pauses") >= 1
    assert 0 < _counted(page, "gc_nanoseconds") <= took
    monkeypatch.setattr(recorder, "_page", None)
    callback("stop", {})  # no page, no fault


@pytest.mark.parametrize(
    ("own", "made", "found"),
    [
        ("0::/a/b\n", "a/b", "a/b"),
        ("0::/a/b\n", ".", "."),  # a container's root
        ("5:devices:/\n4:cpu,cpuacct:/x\n", "cpu/x", "cpu/x"),
        ("4:cpu,cpuacct:/host/path\n", "cpu", "cpu"),
        ("9:name=systemd:/\n", "cpu", None),
        ("", ".", None),
        ("nonsense\n", ".", "."),
    ],
)
def test_the_cgroup_is_its_own(tmp_path, own, made, found):
    listed = tmp_path / "cgroup"
    listed.write_text(own)
    root = tmp_path / "root"
    (root / made).mkdir(parents=True, exist_ok=True)
    (root / made / "cpu.stat").write_text("")
    expected = None if found is None else root / found / "cpu.stat"
    assert find_cpu_stat(root, listed) == expected


BUSY = """
import gc, os, sys, threading, time
import patched_engine
assert patched_engine.install()
from patched_engine import recorder
recorder.identify("worker", 0, world_size=1)
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
children = [os.fork() for _ in range(2)]
ends = time.monotonic() + 2.5
while time.monotonic() < ends:
    pass
if not all(children):
    os._exit(0)
gc.collect()
time.sleep(1.2)
print("done", flush=True)
sys.stdin.read()
"""


def test_a_process_that_shares_a_cpu_says_so(tmp_path):
    """Three processes on one CPU: the main thread is ready without one for most of the time."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY],
        env={**os.environ, "STALLSCOPE_DIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "done\n"
        folder = PageFolder(tmp_path)
        [sample] = folder.read(time.monotonic_ns()).pages
        folder.close()
    finally:
        process.kill()
        process.communicate()
    counters = sample.process.counters
    assert counters["runqueue_nanoseconds"] > 0.5e9
    assert counters["gc_pauses"] >= 1 and counters["hook_faults"] == 0
