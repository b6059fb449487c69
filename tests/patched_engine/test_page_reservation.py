"""A folder that cannot hold a page, or a page that is taken away: the engine runs on, counted."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporters import page_layout as layout
from patched_engine.page import Page, PageUnavailableError, sweep_dead_pages
from tests.patched_engine.decode import decode

ROOT = Path(__file__).parents[2]

# An engine in small: it hooks a class, opens its page if it can, works, and prints its status.
ENGINE = """
import json, sys, time
from exporters import page_layout as layout
from patched_engine import recorder, install
from patched_engine.hooks.steps import StepHook
from patched_engine.hooks.wrap import attach
class Worker:
    def execute_model(self, n): return n + 1
attach(Worker, "execute_model", StepHook())
recorder.identify("worker", 0, engine_id="e", world_size=1)
print("ready", flush=True)
sys.stdin.readline()
total = sum(Worker().execute_model(i) for i in range(1000))
time.sleep(1.5)
print(json.dumps({"total": total, **recorder.status()}), flush=True)
"""


def start(folder: Path | str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", ENGINE],
        cwd=ROOT,
        env={**os.environ, "STALLSCOPE_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(engine: subprocess.Popen[str]) -> dict[str, object]:
    import json

    out, err = engine.communicate("go\n", timeout=30)
    assert engine.returncode == 0, err
    status = json.loads(out.splitlines()[-1])
    assert isinstance(status, dict)
    assert status["total"] == sum(range(1, 1001)), "the engine's own work is untouched"
    return status


def test_a_missing_folder_is_counted_and_the_engine_runs(tmp_path: Path) -> None:
    status = finish(start(tmp_path / "nowhere"))
    assert status["page"] is None
    assert status["faults"] == {"page": 1}


def test_a_read_only_folder_is_counted_and_the_engine_runs() -> None:
    # /proc refuses new files to everyone, root included.
    status = finish(start("/proc/self"))
    assert status["page"] is None
    assert status["faults"] == {"page": 1}


def test_a_full_tmpfs_is_counted_and_the_engine_runs() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux) for a tmpfs of its own")
    mount = "mount -t tmpfs -o size=512k none /mnt && "
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    wrapper = ("unshare", *user, "--mount", "sh", "-c", mount + 'exec "$@"', "sh")
    probe = subprocess.run([*wrapper, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {probe.stderr.strip()}")
    status = finish(start("/mnt", wrapper))
    assert status["page"] is None
    assert status["faults"] == {"page": 1}


def test_a_failed_reservation_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PageUnavailableError, match="No space left"):
        Page.create(tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_an_engine_survives_the_truncation_of_its_page(tmp_path: Path) -> None:
    engine = start(tmp_path)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    (path,) = tmp_path.glob("*.page")
    os.truncate(path, 100)
    status = finish(engine)
    assert status["page_truncated"] is True
    assert status["page_rescues"] == 1


def test_another_sigbus_keeps_its_meaning(tmp_path: Path) -> None:
    # The guard must not hide a fault that is not the page's: here a mapping of our own.
    script = f"""
import mmap, os
from pathlib import Path
from patched_engine.page import Page
Page.create(Path({str(tmp_path)!r}), {{}})
fd = os.open({str(tmp_path / "other")!r}, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
other = mmap.mmap(fd, 8192)
os.ftruncate(fd, 0)
other[0] = 1
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=30)
    assert result.returncode == -signal.SIGBUS


def test_a_clean_exit_removes_the_page(tmp_path: Path) -> None:
    engine = start(tmp_path)
    finish(engine)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_tells_alive_from_dead(tmp_path: Path) -> None:
    engine = start(tmp_path)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    (path,) = tmp_path.glob("*.page")
    assert locked(path)
    engine.send_signal(signal.SIGSTOP)
    assert locked(path)
    engine.kill()
    engine.wait(timeout=10)
    assert path.exists()
    assert not locked(path)


def locked(path: Path) -> bool:
    with path.open("rb") as file:
        query = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def test_a_forked_child_does_not_write_its_parents_page(tmp_path: Path) -> None:
    script = f"""
import os, time
from exporters import page_layout as layout
from patched_engine import recorder
os.environ["STALLSCOPE_DIR"] = {str(tmp_path)!r}
page = recorder.identify("worker", 0, engine_id="e")
page.add(layout.COUNTER_INDEX["steps"], 5)
child = os.fork()
if child == 0:
    assert recorder.current() is None
    own = recorder.identify("worker", 1, engine_id="e")
    own.add(layout.COUNTER_INDEX["steps"], 7)
    time.sleep(0.5)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.2)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=30)
    steps = {decode(p).info["rank"]: decode(p).counters["steps"] for p in tmp_path.glob("*.page")}
    assert steps == {0: 5, 1: 7}


def test_a_new_engine_sweeps_the_dead_page_of_its_place(tmp_path: Path) -> None:
    engine = start(tmp_path)
    assert engine.stdout is not None
    engine.stdout.readline()
    engine.kill()
    engine.wait(timeout=10)
    identity: dict[str, object] = {"engine_id": "e", "roles": ["worker"], "rank": 0}
    assert sweep_dead_pages(tmp_path, {**identity, "rank": 1}) == 0
    assert sweep_dead_pages(tmp_path, identity) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dead_page_of_a_reused_pid_is_swept_and_our_own_is_not(tmp_path: Path) -> None:
    engine = start(tmp_path)
    assert engine.stdout is not None
    engine.stdout.readline()
    engine.kill()
    engine.wait(timeout=10)
    (dead,) = tmp_path.glob("*.page")
    # A container that starts again gives its processes the pids of its last life.
    dead.rename(tmp_path / f"{os.getpid()}-0000000000000001.page")
    identity: dict[str, object] = {"engine_id": "e", "roles": ["worker"], "rank": 0}
    own = Page.create(tmp_path, identity)
    try:
        assert sweep_dead_pages(tmp_path, identity) == 1
        assert list(tmp_path.iterdir()) == [own.path]
    finally:
        own.close()


def test_a_handler_put_over_ours_is_taken_back(tmp_path: Path) -> None:
    script = f"""
import faulthandler, os, time
from pathlib import Path
from patched_engine.page import Page
page = Page.create(Path({str(tmp_path)!r}), {{}})
faulthandler.enable()
time.sleep(1.5)
os.truncate(page.path, 0)
page.add(0)
print("alive")
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert result.stdout == "alive\n", result.stderr


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.page").write_bytes(b"not a page")
    os.mkfifo(tmp_path / "pipe.page")
    started = time.monotonic()
    assert sweep_dead_pages(tmp_path, {"engine_id": "e", "roles": ["worker"], "rank": 0}) == 0
    assert time.monotonic() - started < 1
    assert layout.SUFFIX == ".page"
