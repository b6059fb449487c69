"""NVTX ranges at an injected tool: a stub profiler, compiled here, that writes down each call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patched_engine import recorder
from patched_engine.telemetry import ranges
from tests.patched_engine.telemetry import traced_engine as engine
from tests.patched_engine.telemetry.engine import ROOT, clean_environment
from tests.patched_engine.telemetry.engine import traced_engine as running

pytest.importorskip("nvtx")
SOURCE = Path(__file__).with_name("profiler_stub.c")


@dataclass(frozen=True)
class Event:
    what: str
    thread: int
    message: str
    category: str


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stub: a library as a profiler injects one."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stub profiler with")
    library = tmp_path_factory.mktemp("stub") / "libstub.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


def events(log: Path) -> list[Event]:
    """The events of our domain, their categories by name."""
    names: dict[str, str] = {}
    found = []
    for line in log.read_text().splitlines():
        what, domain, thread, category, message = line.split("|", 4)
        if domain != ranges.DOMAIN:
            continue  # LMCache has ranges of its own
        if what == "category":
            names[category] = message
        elif what in ("push", "pop", "mark"):
            found.append(Event(what, int(thread), message, names.get(category, "")))
    return found


def depths(found: list[Event]) -> list[int]:
    """How deep each thread's ranges are after each event; never below 0 if they balance."""
    depth: dict[int, int] = defaultdict(int)
    seen = []
    for event in found:
        depth[event.thread] += {"push": 1, "pop": -1, "mark": 0}[event.what]
        seen.append(depth[event.thread])
    assert set(depth.values()) <= {0}, "a range was left open"
    return seen


def test_each_operation_of_a_real_engine_is_a_range(stub: Path, tmp_path: Path) -> None:
    log = tmp_path / "nvtx.log"
    with running(tmp_path, "sync", NVTX_INJECTION64_PATH=str(stub), NVTX_STUB_LOG=str(log)) as run:
        found = events(log)
        assert run.end["installed"] and run.end["status"]["faults"] == {}
        assert run.end["status"]["page"] is None and run.end["status"]["spans"] == {}
    assert min(depths(found)) == 0
    main = found[0].thread
    moved = f"{engine.CHUNKS} chunks, {engine.CHUNKS * engine.CHUNK_BYTES} bytes"
    own = [(e.what, e.message) for e in found if e.thread == main and e.what != "pop"]
    assert own == [
        ("push", "store r1 rank 1"),
        ("mark", f"2 chunks, {2 * engine.CHUNK_BYTES} bytes"),
        ("push", "store r1 rank 1"),
        ("mark", f"3 chunks, {3 * engine.CHUNK_BYTES} bytes"),
        ("push", "lookup r2 scheduler"),
        ("push", "load r2 rank 1"),
        ("mark", moved),
        ("push", "store r3 rank 1"),
        ("mark", moved),
        ("push", "lookup r3 scheduler"),
        ("push", "load r3 rank 1"),
        ("mark", moved),
        ("push", "store r4 rank 1"),  # which raises
        ("push", "lookup r5 scheduler"),  # which nobody answers
    ]
    served = [e.message for e in found if e.thread != main and e.what == "push"]
    assert served == ["lookup r2 rank 1", "lookup r3 rank 1"], "on the thread that served it"
    assert {e.category for e in found} == {"store", "load", "lookup", "moved", ""}


def test_without_a_tool_nothing_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from patched_engine import telemetry
from patched_engine.telemetry import ranges
telemetry.start()
print(ranges.wanted(), ranges.domain, "nvtx" in sys.modules)
"""
    assert python(code) == "False None False"


def test_a_tool_that_cannot_be_loaded_leaves_it_off() -> None:
    code = """
from patched_engine import recorder, telemetry
from patched_engine.telemetry import ranges
telemetry.start()
print(ranges.wanted(), ranges.domain, dict(recorder.faults))
"""
    assert python(code, NVTX_INJECTION64_PATH="/nowhere/lib.so") == "True None {}"


def test_without_the_package_it_is_off() -> None:
    code = """
import sys
sys.modules["nvtx"] = None
from patched_engine import recorder, telemetry
from patched_engine.telemetry import ranges
telemetry.start()
print(ranges.domain, dict(recorder.faults))
"""
    assert python(code, NVTX_INJECTION64_PATH="/nowhere/lib.so") == "None {}"


def test_messages_kept_are_bounded(stub: Path, tmp_path: Path) -> None:
    code = """
from patched_engine.telemetry import ranges
ranges.start()
for number in range(3 * ranges.MOST_KEPT):
    assert ranges.push("load", f"r{number}", 0)
    ranges.pop(number, 8 * number)
print(len(ranges._kept) <= ranges.MOST_KEPT,
      type(ranges.domain).get_registered_string.cache_info().currsize)
"""
    log = tmp_path / "nvtx.log"
    said = python(code, NVTX_INJECTION64_PATH=str(stub), NVTX_STUB_LOG=str(log))
    assert said == "True 1", "the package's own cache has no bound"
    assert min(depths(events(log))) == 0
    assert len(events(log)) == 3 * 3 * ranges.MOST_KEPT - 1


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class BrokenDomain:
    """A domain of which one call fails; counts the others."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: object, **kwargs: object) -> Any:
            if name == self._broken:
                raise RuntimeError(f"a tool that fails in {name}")
            self.calls.append(name)
            return type("Attributes", (), {})()

        return call

    def get_registered_string(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("broken", "is_pushed", "calls"),
    [
        ("push_range", False, []),
        ("mark", True, ["push_range", "pop_range"]),
        ("pop_range", True, ["push_range", "mark"]),
    ],
)
def test_a_tool_that_fails_is_counted_and_ranges_stay_balanced(
    monkeypatch: pytest.MonkeyPatch, broken: str, is_pushed: bool, calls: list[str]
) -> None:
    domain = BrokenDomain(broken)
    monkeypatch.setattr(ranges, "domain", domain)
    monkeypatch.setattr(ranges, "_kept", {})
    monkeypatch.setattr(ranges, "_register", lambda: BrokenDomain.get_registered_string)
    recorder.faults.clear()
    assert ranges.push("load", "r", 0) is is_pushed
    if is_pushed:
        ranges.pop(2, 16)
    assert [name for name in domain.calls if name != "get_event_attributes"] == calls
    assert recorder.faults == {"nvtx": 1}
    recorder.faults.clear()
