"""Logs as the real libraries wrote them, in every dressing that they come in."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from exporters import reasons
from exporters.readers import logs
from exporters.readers.log_engines import with_logs
from exporters.readers.logs import LogError, LogFile
from exporters.snapshot import Engine, LogCount
from tests.detectors.pictures import engine, snapshot, worker
from tests.exporters import record_logs

ROOT = Path(__file__).parents[2]
LOGS = Path(__file__).with_name("logs")
LMCACHE = sorted(LOGS.glob("lmcache-*.log"))
UNPIN = (
    "Pin count of MemoryObj 0is negative: -1.Double unpin occurred somewhere."
    "Setting pin count back to 0 as a hack but please find the bug."
)
UNPIN_LINE = (
    f"\x1b[33;20m[2026-12-01 00:59:29,224] LMCache WARNING:\x1b[0m {UNPIN} "
    "\x1b[3m(memory_management.py:818:lmcache.v1.memory_management)\x1b[0m"
)
DIED = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."
DIED_LINE = f"(EngineCore pid=30823) ERROR 12-01 00:59:58 [multiproc_executor.py:315] {DIED}"


def read(tmp_path: Path, *lines: str, end: str = "\n"):
    path = tmp_path / "log"
    path.write_bytes(("\n".join(lines) + end).encode())
    return LogFile(str(path)).read()


def kinds(sample) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in sample.counts:
        total[count.kind] = total.get(count.kind, 0) + count.count
    return total


def local(*moment: int) -> float:
    return datetime.datetime(*moment).timestamp()


@pytest.mark.parametrize("path", LMCACHE, ids=lambda path: path.stem)
def test_lines_that_lmcache_logged(path):
    sample = LogFile(str(path)).read()
    assert (kinds(sample), sample.unseen) == (record_logs.EXPECTED, ())
    assert all(count.first_unix_seconds is not None for count in sample.counts)


def test_both_releases_are_on_record():
    assert [path.stem for path in LMCACHE] == ["lmcache-0.5.5", "lmcache-0.5.6"]


@pytest.mark.soak
@pytest.mark.parametrize("release", ["0.5.5", "0.5.6"])
def test_the_installed_release_still_logs_what_is_on_record(release, tmp_path):
    pytest.importorskip("lmcache")
    second = Path(sys.prefix) / f"lmcache-{release}"
    path = [str(second)] if second.is_dir() else []
    out = tmp_path / "log"
    subprocess.run(
        [sys.executable, "-m", record_logs.__name__, str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])},
        check=True,
        timeout=200,
    )
    assert kinds(LogFile(str(out)).read()) == record_logs.EXPECTED


def test_lines_that_vllm_logged():
    """Of two servers: a hit under stock PCP; a degraded cache, and a worker that was killed."""
    sample = LogFile(str(LOGS / "vllm-0.32.0.log")).read()
    assert kinds(sample) == {
        "wrong_group": 1,
        "load_failed": 1,
        "double_unpin": 2,
        "requests_failed": 1,
        "remote_lost": 1,
        "degraded": 1,
        "unhealthy_skip": 4,
        "worker_died": 1,
    }
    [died] = [count for count in sample.counts if count.kind == "worker_died"]
    assert (died.process, died.pid) == ("EngineCore", 12516)


STAMP = "2026-12-01T02:03:04.123456789Z"
AT = datetime.datetime(2026, 12, 1, 2, 3, 4, 123456, datetime.UTC).timestamp()
JSON = {
    "asctime": "12-01 00:59:58",
    "levelname": "ERROR",
    "name": "vllm.v1.executor.multiproc_executor",
    "processName": "EngineCore",
    "process": 30823,
    "message": DIED,
}


@pytest.mark.parametrize(
    ("line", "process", "pid", "at"),
    [
        (DIED_LINE, "EngineCore", 30823, local(2026, 12, 1, 0, 59, 58)),
        (DIED_LINE.partition(") ")[2], "", None, local(2026, 12, 1, 0, 59, 58)),
        (f"{STAMP} {DIED_LINE}", "EngineCore", 30823, AT),
        (f"{STAMP} stderr F {DIED_LINE}\r", "EngineCore", 30823, AT),
        (f"\x1b[0;36m(EngineCore pid=30823)\x1b[0;0m{DIED_LINE[22:]}", "EngineCore", 30823, None),
        (json.dumps(JSON), "EngineCore", 30823, local(2026, 12, 1, 0, 59, 58)),
        (json.dumps({"log": DIED_LINE + "\n", "time": STAMP}), "EngineCore", 30823, AT),
        (UNPIN_LINE, "", None, local(2026, 12, 1, 0, 59, 29)),
        (f"(Worker_PCP1 pid=7) {UNPIN_LINE}", "Worker_PCP1", 7, local(2026, 12, 1, 0, 59, 29)),
        (
            json.dumps({**JSON, "name": "lmcache.v1.memory_management", "message": UNPIN}),
            "EngineCore",
            30823,
            None,
        ),
    ],
)
def test_every_dressing_of_a_line(tmp_path, line, process, pid, at, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: local(2026, 12, 2))
    sample = read(tmp_path, line)
    [count] = sample.counts
    assert (count.count, count.process, count.pid) == (1, process, pid)
    assert at is None or count.first_unix_seconds == count.last_unix_seconds == at
    assert sample.unseen == ()


@pytest.mark.parametrize("stamp", ["", f"{STAMP} "])
def test_each_pod_of_a_fleets_log_is_told_apart(tmp_path, stamp):
    """kubectl logs -l app=prefill --prefix; and docker compose logs."""
    lines = [f"[pod/prefill-{i}/vllm] {stamp}{DIED_LINE}" for i in (0, 1, 1)]
    sample = read(tmp_path, *lines, f"prefill-2  | {stamp}{UNPIN_LINE}")
    assert [(count.source, count.kind, count.count) for count in sample.counts] == [
        ("prefill-0/vllm", "worker_died", 1),
        ("prefill-1/vllm", "worker_died", 2),
        ("prefill-2", "double_unpin", 1),
    ]
    engines = with_logs(snapshot(), sample.counts).engines
    assert [e.engine_id for e in engines] == ["prefill-0/vllm", "prefill-1/vllm", "prefill-2"]
    # A page's process of that number may be any pod's.
    page = snapshot(engine(2, processes=(worker(0, 2, pid=30823),)))
    assert with_logs(page, sample.counts).engines[0].processes[0].counters == {}


@pytest.mark.parametrize(
    "line",
    [
        # What a user asks about is no fault of the engine.
        f"(APIServer pid=1) INFO 12-01 00:59:58 [logger.py:39] Received request: '{UNPIN}'",
        f"(APIServer pid=1) WARNING 12-01 00:59:58 [logger.py:39] prompt '{UNPIN}' is long",
        DIED,
        UNPIN,
        json.dumps({"message": DIED}),
        json.dumps({**JSON, "name": "someone.else"}),
        json.dumps({**JSON, "levelname": "INFO"}),
    ],
)
def test_words_that_neither_library_logged_do_not_count(tmp_path, line):
    head = "(EngineCore pid=5) INFO 12-01 00:59:11 [core.py:133] all is well"
    assert read(tmp_path, head, line).counts == ()


def test_a_long_message_counts_once(tmp_path):
    """Its first line has the head, its last one the logger's name."""
    lines = (
        "[2026-12-01 12:51:30,453] LMCache ERROR: Failed during post_init: Traceback (most",
        '  File "x.py", line 3, in f',
        "RuntimeError: no such shard",
        ". System will operate in degraded mode (recompute). (manager.py:107:lmcache.v1.manager)",
    )
    [count] = read(tmp_path, *lines).counts
    assert (count.kind, count.count) == ("degraded", 1)


@pytest.mark.parametrize(
    ("now", "stamp", "year"),
    [
        ((2027, 1, 2), "12-31 23:59:59", 2026),
        ((2026, 12, 31, 23), "12-31 23:59:59", 2026),
        ((2026, 6, 1), "02-29 12:00:00", 2024),
    ],
)
def test_a_stamp_without_a_year_is_of_the_last_one_that_fits(
    tmp_path, monkeypatch, now, stamp, year
):
    monkeypatch.setattr(time, "time", lambda: local(*now))
    [count] = read(tmp_path, DIED_LINE.replace("12-01 00:59:58", stamp)).counts
    month, day = int(stamp[:2]), int(stamp[3:5])
    clock = map(int, stamp[6:].split(":"))
    assert count.last_unix_seconds == local(year, month, day, *clock)


def test_a_stamp_that_is_no_time_leaves_the_line_counted(tmp_path):
    [count] = read(tmp_path, DIED_LINE.replace("12-01 00:59:58", "99-99 77:77:77")).counts
    assert (count.count, count.last_unix_seconds) == (1, None)


def test_a_log_is_read_on_and_a_rotated_one_from_its_beginning(tmp_path):
    path = tmp_path / "log"
    path.write_text(f"{DIED_LINE}\n{DIED_LINE[:40]}")
    log = LogFile(str(path), follow=True)
    assert kinds(log.read()) == {"worker_died": 1}
    with path.open("a") as file:
        file.write(f"{DIED_LINE[40:]}\n")
    assert kinds(log.read()) == kinds(log.read()) == {"worker_died": 2}
    (tmp_path / "new").write_text(f"{DIED_LINE}\n")
    (tmp_path / "new").replace(path)
    assert kinds(log.read()) == {"worker_died": 3}
    path.write_text("")
    assert kinds(log.read()) == {"worker_died": 3}
    path.unlink()
    [unseen] = log.read().unseen
    assert unseen.reason == reasons.UNREADABLE


def test_a_last_line_without_an_end_counts_where_nobody_follows(tmp_path):
    assert kinds(read(tmp_path, DIED_LINE, end="")) == {"worker_died": 1}


def test_a_pipe_is_read_to_its_end(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_text(DIED_LINE))  # no line end either
    writer.start()
    log = LogFile(str(fifo))
    assert kinds(log.read()) == kinds(log.read()) == {"worker_died": 1}
    writer.join()


def test_of_a_huge_log_the_newest_part_is_read_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MOST_BYTES", 10_000)
    sample = read(tmp_path, *[DIED_LINE] * 5000, UNPIN_LINE)
    assert 0 < kinds(sample)["worker_died"] < 200
    assert kinds(sample)["double_unpin"] == 1
    assert [unseen.reason for unseen in sample.unseen] == [reasons.TRUNCATED]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\nworld\n", bytes(range(256)) * 99])
def test_what_is_no_such_log_is_unseen(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    sample = LogFile(str(path)).read()
    assert (sample.counts, [u.reason for u in sample.unseen]) == ((), [reasons.UNREADABLE])


def test_a_line_without_an_end_costs_no_more_than_its_beginning(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(DIED_LINE.encode() + b"x" * (20 << 20) + b"\n" + DIED_LINE.encode() + b"\n")
    assert kinds(LogFile(str(path)).read()) == {"worker_died": 2}


@pytest.mark.parametrize(
    ("content", "says"), [(b"\x1f\x8b\x08\0", "compressed"), (None, "no file")]
)
def test_what_cannot_be_read_as_text_is_refused_with_a_mend(tmp_path, content, says):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LogError, match=says):
        LogFile(str(path))
    with pytest.raises(LogError, match="is a folder"):
        LogFile(str(tmp_path))
    with pytest.raises(LogError, match="cannot be read"):
        LogFile("a\0b")


def test_a_release_that_was_not_read_is_said_and_its_lines_still_counted(tmp_path):
    head = (
        "(EngineCore pid=1) INFO 12-01 00:59:11 [core.py:133] Initializing a V1 LLM engine (v9.9.1)"
        " with config: x"
    )
    sample = read(tmp_path, head, DIED_LINE)
    assert kinds(sample) == {"worker_died": 1}
    assert [unseen.reason for unseen in sample.unseen] == [reasons.UNKNOWN_SCHEMA]
    assert "vLLM 9.9.1" in sample.unseen[0].detail
    assert read(tmp_path, head.replace("9.9.1", "0.32.0"), DIED_LINE).unseen == ()


def test_a_process_has_the_larger_of_what_its_page_and_its_log_count():
    process = worker(1, 2, counters={"log_degraded": 5, "log_double_free": 1})
    picture = snapshot(engine(2, processes=(worker(0, 2), process)))
    counts = (
        LogCount("degraded", 3, "a", "Worker_PCP1", 101),
        LogCount("double_free", 2, "a", "Worker_PCP1", 101),
        LogCount("double_free", 9, "a", "Worker_PCP7", 999),
    )
    [seen] = with_logs(picture, counts).engines
    assert seen.workers()[1].counters == {"log_degraded": 5, "log_double_free": 2}
    assert seen.workers()[0].counters == {}
    assert with_logs(picture, counts).logs == counts
    assert with_logs(picture, ()) is picture


def test_a_log_alone_is_an_engine_of_the_processes_it_names():
    counts = (
        LogCount("degraded", 3, "a", "Worker_PCP1", 101),
        LogCount("engine_died", 1, "a", "EngineCore", 100),
        LogCount("double_free", 2, "b"),
    )
    first, second = with_logs(snapshot(), counts).engines
    assert isinstance(first, Engine) and (first.engine_id, second.engine_id) == ("a", "b")
    assert [(p.roles, p.rank, p.pid, dict(p.counters)) for p in first.processes] == [
        (("worker",), 1, 101, {"log_degraded": 3}),
        (("scheduler",), None, 100, {"log_engine_died": 1}),
    ]
    assert second.processes[0].counters == {"log_double_free": 2}
