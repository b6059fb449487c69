"""Stacks by the real py-spy of tiny programs: what is read, at what cost, and what cannot be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporters import reasons
from exporters.readers import proc_table, ptrace_rights, py_spy, stacks
from exporters.readers.py_spy import dump_all, find_py_spy, parse
from tests.exporters.stack_targets import target, targets

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 0.5
PAUSE_SECONDS = 0.1
ROUNDS = 20  # the best of these: a busy machine makes a look slow, and not wrong


def read(*pids: int, **options):
    return stacks.read(stacks.of_pids(pids), **options)


def functions(thread) -> list[str]:
    return [frame.function.rpartition(".")[2] for frame in thread.frames]


def test_what_each_thread_is_inside_of():
    with target("waiting") as process:
        sample = read(process.pid)
    [stack] = sample.stacks
    assert sample.unseen == () and not stack.torn
    assert [thread.name for thread in stack.threads] == ["MainThread", "lookup-server-thread"]
    main, lookup = stack.threads
    assert functions(main)[-2:] == ["main", "<module>"]
    assert functions(lookup)[:3] == ["wait", "result", "batch_exists_sync"]
    assert lookup.frames[0].file == "threading.py" and not lookup.active


def test_nine_processes_within_half_a_second():
    with targets("waiting", 9) as processes:
        pids = [process.pid for process in processes]
        took = []
        for _ in range(ROUNDS):
            sample = read(*pids)
            assert {stack.pid for stack in sample.stacks} == set(pids), sample.unseen
            took.append(sample.took_seconds)
            if took[-1] < LIMIT_SECONDS:
                break
    assert min(took) < LIMIT_SECONDS


@pytest.mark.parametrize("native", [False, True])
def test_the_process_is_paused_for_less_than_a_tenth_of_a_second(native):
    with target("beating") as process:

        def longest() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        gaps = []
        for _ in range(ROUNDS):
            longest()
            sample = read(process.pid, native=native)
            gaps.append(longest())
            assert len(sample.stacks) == 1
            if gaps[-1] < PAUSE_SECONDS:
                break
    assert min(gaps) < PAUSE_SECONDS


@pytest.mark.parametrize("native", [False, True])
def test_a_stopped_process_is_read_and_stays_stopped(native):
    """py-spy's default mode, which `native` needs, fails on it: it is then read without."""
    with target("waiting") as process:
        os.kill(process.pid, signal.SIGSTOP)
        _wait_for_state(process.pid, "T")
        sample = read(process.pid, native=native)
        assert proc_table.read_entry(process.pid).state == "T"
    [stack] = sample.stacks
    assert (stack.state, stack.torn, sample.unseen) == ("T", False, ())
    assert "batch_exists_sync" in functions(stack.threads[1])


def test_native_code_shows_its_caller_and_on_demand_itself():
    with target("native") as process:
        [plain] = read(process.pid).stacks
        [native] = read(process.pid, native=True).stacks
    assert functions(plain.threads[0]) == ["into_c", "<module>"]
    frames = native.threads[0].frames
    assert any(
        "libc" in frame.file for frame in frames[: functions(native.threads[0]).index("into_c")]
    )


def test_one_that_ended_and_one_that_nobody_reaped():
    with target("native") as ended, target("waiting") as other:
        ended.kill()
        _wait_for_state(ended.pid, "Z")
        sample = read(ended.pid, other.pid)
        ended.wait()
        gone = read(ended.pid)
    assert [stack.pid for stack in sample.stacks] == [other.pid]
    assert [unseen.reason for unseen in sample.unseen] == [reasons.ENDED]
    assert [unseen.reason for unseen in gone.unseen] == [reasons.ENDED]


def test_one_that_dies_while_it_is_read(tmp_path):
    with target("native") as process, target("waiting") as other:
        tool = _tool(tmp_path, f'[ "$5" = {process.pid} ] && kill -9 {process.pid} && sleep 0.1')
        dying, alive = dump_all(tool, [process.pid, other.pid], 10)
    assert (dying.failure, dying.torn) == ("ended", False)
    assert alive.failure is None and alive.threads


def test_a_child_that_is_no_python():
    child = subprocess.Popen(["sleep", "60"])
    try:
        sample = read(child.pid)
    finally:
        child.kill()
        child.wait()
    [unseen] = sample.unseen
    assert (unseen.reason, sample.stacks) == (reasons.NOT_PYTHON, ())
    assert unseen.mend


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user():
    """First as we would tell it, then as py-spy is told by the kernel."""
    program = """
import os, sys
from exporters.readers import stacks, py_spy
tool, pid = py_spy.find_py_spy(), int(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
[unseen] = stacks.read(stacks.of_pids([pid])).unseen
print(unseen.reason, unseen.detail, unseen.mend, sep="\\n")
print(py_spy.dump_all(tool, [pid], 10)[0].failure)
"""
    with target("waiting") as process:
        run = subprocess.run(
            [sys.executable, "-c", program, str(process.pid)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
    reason, detail, mend, failure = run.stdout.splitlines()
    assert reason == reasons.NO_PTRACE
    assert f"pid {process.pid} is of another user (uid 0)" in detail
    assert "run as uid 0" in mend and "kubectl debug" in mend and "--profile=general" in mend
    assert failure in ("denied", "failed")  # "failed" where that user may not run it at all


def test_a_torn_picture_is_tried_three_times_more_and_then_marked(tmp_path):
    torn = json.dumps([_thread(name="f\x00\x01")])
    with target("waiting") as process:
        whole, calls = _torn_times(tmp_path / "a", 3, torn), tmp_path / "a" / "calls"
        [dump] = dump_all(whole, [process.pid], 10)
        assert (dump.torn, len(calls.read_text())) == (False, 4)
        assert "batch_exists_sync" in functions(dump.threads[1])
        never, calls = _torn_times(tmp_path / "b", 99, torn), tmp_path / "b" / "calls"
        [dump] = dump_all(never, [process.pid], 10)
        assert (dump.torn, len(calls.read_text())) == (True, 4)


def test_no_py_spy_outlives_the_deadline(tmp_path):
    with target("waiting") as slow, target("waiting") as other:
        tool = _tool(tmp_path, f'[ "$5" = {slow.pid} ] && exec sleep 60')
        began = time.monotonic()
        late, alive = dump_all(tool, [slow.pid, other.pid], 1.0)
        assert time.monotonic() - began < 5
    assert (late.failure, alive.failure) == ("timeout", None)


@pytest.mark.parametrize(
    ("end", "seconds", "failure"),
    [("exec sleep 60", 0.5, "timeout"), ("kill -9 $$", 20, "failed")],
)
def test_a_process_left_stopped_by_a_tracer_that_was_killed_goes_on(
    tmp_path, end, seconds, failure
):
    with target("waiting") as process:
        tool = _tool(tmp_path, f"kill -STOP {process.pid}; {end}")
        [dump] = dump_all(tool, [process.pid], seconds, native=True)
        assert dump.failure == failure
        assert proc_table.read_entry(process.pid).state != "T"


def test_without_py_spy_that_is_said(monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    [unseen] = read(os.getpid()).unseen
    assert unseen.reason == reasons.NO_TOOL and "pip install py-spy" in unseen.mend


def test_processes_are_found_by_their_titles_and_by_their_server():
    with (
        target("native", argv0="VLLM::Worker_PCP1") as worker,
        target("native", argv0="VLLM::EngineCore_DP0") as core,
        target("native", argv0="VLLM::APIServer") as server,
        target("server", arguments=["vllm", "serve"]) as untitled,
    ):
        found = {target.pid: target for target in stacks.of_names()}
        children = list(map(int, untitled.said))
    assert (found[worker.pid].rank, found[worker.pid].label) == (
        1,
        f"Worker_PCP1 (pid {worker.pid})",
    )
    assert found[core.pid].rank is None
    assert server.pid not in found and untitled.pid not in found
    assert [pid in found for pid in children] == [True, True, False]


def test_parents_that_go_round_in_a_circle_end(tmp_path):
    """A table is read one process at a time, and numbers are used again."""
    for pid, parent, words in ((7, 8, "python vllm serve"), (8, 9, "python w.py"), (9, 7, "sh")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 1 1")
        (tmp_path / str(pid) / "cmdline").write_text(words.replace(" ", "\0"))
    found = proc_table.engine_processes(tmp_path)
    assert [(f.pid, f.label, f.family) for f in found] == [(8, "child of 7", 7)]


def test_none_in_sight_is_unseen():
    [unseen] = stacks.read(()).unseen
    assert unseen.reason == reasons.NO_PROCESS and "--pid" in unseen.mend


@pytest.mark.parametrize(
    ("scope", "ours", "theirs", "says"),
    [
        (0, {}, {}, ""),
        (0, {"CapEff": "80000"}, {"Uid": 0}, ""),
        (0, {}, {"Uid": 0}, "another user (uid 0)"),
        (0, {}, {"Gid": 7}, "another user"),
        (0, {}, {"CapPrm": "3"}, "capabilities that this process lacks"),
        (1, {}, {}, "ptrace_scope is 1"),
        (1, {"CapEff": "80000"}, {"Uid": 0}, ""),
        (2, {}, {}, "ptrace_scope is 2"),
        (3, {"CapEff": "80000"}, {}, "ptrace_scope is 3"),
        (None, {}, {}, ""),
    ],
)
def test_what_will_keep_us_from_looking(tmp_path, scope, ours, theirs, says):
    if scope is not None:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    for name, changes in (("self", ours), ("7", theirs)):
        fields = {"Uid": 1000, "Gid": 1000, "CapPrm": "0", "CapEff": "0", **changes}
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text(_status(fields))
    found = ptrace_rights.hindrance(7, tmp_path)
    assert (says in found.detail and bool(found.mend)) if says else found is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "{}",
        "[]",
        "[1]",
        '[{"frames": 1}]',
        "[" * 5000,
        json.dumps([{"thread_name": "x", "os_thread_id": 1, "frames": []}]),
    ],
)
def test_what_is_no_picture_is_not_taken_for_one(text):
    assert not parse(text).is_whole


def test_the_ends_of_a_runaway_recursion_are_kept():
    frames = [_frame(f"f{i}") for i in range(1000)]
    frames[-1]["is_entry"] = True
    picture = parse(json.dumps([{**_thread(), "frames": frames}]))
    [thread] = picture.threads
    assert picture.is_whole and thread.cut_frames == 1000 - py_spy.MOST_FRAMES
    assert (thread.frames[0].function, thread.frames[-1].function) == ("f0", "f999")


def test_a_thread_cut_off_from_its_first_call_is_torn():
    cut = [_frame("inner", is_entry=True), _frame("middle")]
    assert not parse(json.dumps([{**_thread(), "frames": cut}])).is_whole
    # A Python that py-spy cannot tell entries of says so of none.
    assert parse(json.dumps([{**_thread(), "frames": [_frame("f"), _frame("g")]}])).is_whole


@pytest.mark.parametrize(
    ("thread", "outermost", "whole"),
    [
        ("worker", "_bootstrap", True),
        ("worker", "Thread._bootstrap", True),
        ("worker", "deep", False),
        ("MainThread", "anything", True),
        ("Dummy-1", "anything", True),
        (None, "anything", True),
    ],
)
def test_where_every_call_is_an_entry_a_threads_first_call_tells(thread, outermost, whole):
    """So py-spy says of Python before 3.11, of which it read such stacks on the run."""
    frames = [_frame("inner", is_entry=True), _frame(outermost, is_entry=True)]
    item = {**_thread(), "thread_name": thread, "frames": frames}
    assert parse(json.dumps([item])).is_whole == whole


def test_threads_without_the_kernels_number_are_still_several():
    threads = [{**_thread(), "os_thread_id": None, "thread_id": number} for number in (1, 2)]
    assert parse(json.dumps(threads)).is_whole
    assert not parse(json.dumps([threads[0], threads[0]])).is_whole


def _frame(name: str, **changes):
    made = {"name": name, "filename": "/a/site-packages/lmcache/x.py", "short_filename": "x.py"}
    return {**made, "line": 3, "is_entry": False, **changes}


def _thread(name: str = "f"):
    frames = [_frame(name, is_entry=True)]
    made = {"thread_name": "MainThread", "os_thread_id": 1, "active": False, "owns_gil": False}
    return {**made, "frames": frames}


def _status(fields) -> str:
    ids = {name: "\t".join([str(fields[name])] * 4) for name in ("Uid", "Gid")}
    return "".join(f"{name}:\t{value}\n" for name, value in {**fields, **ids}.items())


def _tool(folder: Path, first: str) -> str:
    """The real py-spy, with something done before it looks ($5 is the pid)."""
    folder.mkdir(exist_ok=True)
    tool = folder / "py-spy"
    tool.write_text(f'#!/bin/sh\n{first}\nexec {find_py_spy()} "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return str(tool)


def _torn_times(folder: Path, times: int, text: str) -> str:
    """The real py-spy, after as many torn pictures."""
    folder.mkdir()
    (folder / "torn.json").write_text(text)
    count = f"printf x >> {folder}/calls"
    return _tool(
        folder,
        f"{count}\n[ $(wc -c < {folder}/calls) -le {times} ] && exec cat {folder}/torn.json",
    )


def _wait_for_state(pid: int, state: str) -> None:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with contextlib.suppress(AttributeError):
            if proc_table.read_entry(pid).state == state:
                return
        time.sleep(0.01)
    pytest.fail(f"process {pid} is not in state {state}")
