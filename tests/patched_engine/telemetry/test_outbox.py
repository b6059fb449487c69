"""Spans cost the engine nothing: with a receiver down, hung or late, and with spans off."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from patched_engine import recorder
from patched_engine.hooks.lmcache_engine import StoreHook
from patched_engine.hooks.wrap import observed
from patched_engine.page import Page
from patched_engine.telemetry import spans
from tests.patched_engine.decode import decode
from tests.patched_engine.telemetry.engine import ROOT, clean_environment
from tests.patched_engine.telemetry.receiver import over_grpc, over_http
from tests.servers import free_port

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")

# The engine's part, without an engine: identify, then operations one after the other. `say` prints
# a JSON line that `run` returns; the last is what became of everything.
PRELUDE = """
import json, os, sys, threading, time
from patched_engine import recorder, status, telemetry
from patched_engine.telemetry import spans

recorder.identify("worker", 3, engine_id="engine-x", shard_url="resp://shard-{rank}.example:6379")
telemetry.start()
while spans.outbox is not None and spans.outbox._sender is None:
    time.sleep(0.01)  # an engine that ends within its start has nothing to send

def operation(request_id, start_ns=1_000_000, end_ns=3_000_000, **more):
    facts = dict(asked_tokens=512, tokens=512, chunks=2, size_bytes=64, tier="l2", l2_chunks=1)
    return spans.Operation("load", start_ns, end_ns, 3, request_id, **(facts | more))

def finish(count, prefix="r"):
    "The longest that one hand-over took, in seconds."
    longest = 0
    for number in range(count):
        made = operation(f"{prefix}{number}")
        before = time.perf_counter_ns()
        spans.finished(made)
        longest = max(longest, time.perf_counter_ns() - before)
    return longest / 1e9

def wait(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition(spans.counts()):
        time.sleep(0.02)

def say(**facts):
    print(json.dumps(facts), flush=True)
"""


class Ran:
    """What a program printed, its log, and how long its end took."""

    def __init__(self, code: str, timeout: float = 60, **environment: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code + "\nsay(over_ns=time.monotonic_ns())"],
            cwd=ROOT,
            env={**clean_environment(), "OTEL_BSP_SCHEDULE_DELAY": "100", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, self.log = process.communicate(timeout=timeout)
        finally:
            process.kill()
            process.wait()
        ended_ns = time.monotonic_ns()
        assert process.returncode == 0, self.log
        *self.said, last = [json.loads(line) for line in output.splitlines()]
        self.exit_seconds = (ended_ns - last["over_ns"]) / 1e9

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log.splitlines() if line.strip()]


def endpoint(port: int) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}


# What arrives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_environment_is_the_sdks(protocol: str) -> None:
    with over_grpc() if protocol == "grpc" else over_http() as receiver:
        Ran(
            "finish(1)",  # and then exits: the last spans are sent on the way out
            **endpoint(receiver.port),
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_HEADERS="x-tenant=blue,authorization=Bearer%20t",
            OTEL_SERVICE_NAME="prefill",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
            OTEL_BSP_SCHEDULE_DELAY="60000",
        )
        (span,) = receiver.wait_for(lambda got: len(got) == 1)
    assert span.resource["service.name"] == "prefill"
    assert span.resource["deployment.environment.name"] == "test"
    assert span.resource["stallscope.engine_id"] == "engine-x"
    assert span.resource["stallscope.rank"] == 3
    assert receiver.headers[0]["x-tenant"] == "blue"
    assert receiver.headers[0]["authorization"] == "Bearer t"
    # A batch of one is not a batch; the rank's own shard is the server.
    assert span.attributes["db.operation.name"] == "GET"
    assert "db.operation.batch.size" not in span.attributes
    assert span.attributes["server.address"] == "shard-3.example"


def test_a_span_has_the_wall_clock_of_its_operation() -> None:
    code = """
end_ns = time.monotonic_ns()
now_ns = time.time_ns()
spans.finished(operation("r", start_ns=end_ns - 7_000_000_000, end_ns=end_ns))
say(now_ns=now_ns)
"""
    with over_grpc() as receiver:
        ran = Ran(code, **endpoint(receiver.port))
        (span,) = receiver.wait_for(lambda got: len(got) == 1)
    assert abs(span.end_ns - ran.said[0]["now_ns"]) < 50_000_000
    assert span.end_ns - span.start_ns == 7_000_000_000


def test_a_forked_child_sends_its_own() -> None:
    code = """
import multiprocessing
finish(1, "parent-")
wait(lambda counts: counts["sent"] == 1)
if (pid := os.fork()) == 0:
    recorder.identify("worker", 4, engine_id="engine-y")
    telemetry.start()
    finish(2, "child-")
    wait(lambda counts: counts["sent"] == 2)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
context = multiprocessing.get_context("fork")
child = context.Process(target=finish, args=(1, "worker-"))
child.start(); child.join()
finish(1, "parent-again-")
say(pid=os.getpid(), child=pid, faults=status()["faults"])
"""
    with over_grpc() as receiver:
        ran = Ran(code, **endpoint(receiver.port))
        got = receiver.wait_for(lambda spans: len(spans) == 5)
    facts = ran.said[0]
    assert facts["faults"] == {}
    by_request = {span.attributes["stallscope.request.id"]: span.resource for span in got}
    assert set(by_request) == {"parent-0", "child-0", "child-1", "worker-0", "parent-again-0"}
    assert by_request["parent-0"]["process.pid"] == facts["pid"]
    assert by_request["parent-again-0"]["process.pid"] == facts["pid"]
    assert by_request["child-0"]["process.pid"] == facts["child"]
    assert by_request["child-0"]["stallscope.engine_id"] == "engine-y"
    assert by_request["child-0"]["stallscope.rank"] == 4
    assert by_request["worker-0"]["process.pid"] not in (facts["pid"], facts["child"])


# What is off ----------------------------------------------------------------------------------

OFF = [
    {},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "TRUE"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
]


@pytest.mark.parametrize("environment", OFF)
def test_off_imports_and_starts_nothing(environment: dict[str, str]) -> None:
    code = """
import patched_engine
finish(1)
say(
    installed=patched_engine.install(),
    outbox=spans.outbox is not None,
    imported=sorted(m for m in sys.modules if m.startswith(("opentelemetry", "grpc", "nvtx"))),
    threads=threading.active_count(),
    faults=status()["faults"],
)
"""
    (facts,) = Ran(code, **environment).said
    assert facts == {
        "installed": False,
        "outbox": False,
        "imported": [],
        "threads": 1,
        "faults": {},
    }


def test_the_endpoint_alone_installs_the_hooks_that_name_operations() -> None:
    code = """
import patched_engine
say(installed=patched_engine.install())
from patched_engine.hooks import lmcache_engine
say(collectives="patched_engine.hooks.collectives" in sys.modules and
    any("all_gather" in name for name in status()["hooks"]))
"""
    ran = Ran(code, **endpoint(free_port()))
    assert ran.said == [{"installed": True}, {"collectives": False}]


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "'http/json' is neither"),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4096"}, "max_export_batch_size"),
    ],
)
def test_what_cannot_be_had_is_said_once_and_off(
    environment: dict[str, str], complaint: str
) -> None:
    code = """
finish(100)
wait(lambda counts: not counts)
finish(100)
say(faults=status()["faults"], outbox=spans.outbox is not None)
"""
    ran = Ran(code, **endpoint(free_port()), **environment)
    assert ran.said[0] == {"faults": {"spans": 1}, "outbox": False}
    assert len(ran.warnings) == 1 and complaint in ran.log


def test_without_the_exporters_package_it_is_said_once_and_off() -> None:
    code = """
finish(10)
say(faults=status()["faults"], outbox=spans.outbox is not None)
"""
    block = "import sys; sys.modules['opentelemetry.exporter.otlp.proto.grpc'] = None\n"
    process = subprocess.run(
        [sys.executable, "-c", block + PRELUDE + code],
        cwd=ROOT,
        env={**clean_environment(), **endpoint(free_port())},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(process.stdout) == {"faults": {"spans": 1}, "outbox": False}
    assert len(process.stderr.splitlines()) == 1


# Receivers that fail --------------------------------------------------------------------------

# A hand-over is an append. The bound is what a busy machine may add to it, and far below any wait.
HAND_OVER_SECONDS = 0.5
EXIT_SECONDS = 1.0
BUSY_SECONDS = 4.0  # what the end of an interpreter may take beside that on a busy machine


def test_a_receiver_that_is_down_costs_nothing_and_is_logged_once() -> None:
    code = """
longest = finish(400)
wait(lambda counts: counts["lost"] == 400, 40)
say(longest=longest, counts=spans.counts(), faults=status()["faults"])
"""
    ran = Ran(code, **endpoint(free_port()), OTEL_EXPORTER_OTLP_TIMEOUT="1")
    facts = ran.said[0]
    assert facts["longest"] < HAND_OVER_SECONDS
    assert facts["counts"] == {"sent": 0, "lost": 400, "dropped": 0, "waiting": 0}
    assert facts["faults"] == {}, "a receiver that is away is no fault of ours"
    assert len(ran.warnings) == 1 and "no spans reach http://127.0.0.1" in ran.log
    assert ran.exit_seconds < EXIT_SECONDS + BUSY_SECONDS


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_receiver_that_hangs_holds_up_neither_the_engine_nor_its_end(protocol: str) -> None:
    code = """
longest = finish(50)
wait(lambda counts: counts["waiting"] < 50)
longest = max(longest, finish(3000))
say(longest=longest, counts=spans.counts())
"""
    hang = threading.Event()
    with over_grpc(hang=hang) if protocol == "grpc" else over_http(hang=hang) as receiver:
        ran = Ran(
            code,
            **endpoint(receiver.port),
            OTEL_EXPORTER_OTLP_TIMEOUT="30",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        )
        hang.set()
    assert ran.said[0]["longest"] < HAND_OVER_SECONDS
    assert ran.said[0]["counts"]["sent"] == 0
    assert EXIT_SECONDS / 2 < ran.exit_seconds < EXIT_SECONDS + BUSY_SECONDS


def test_a_full_queue_drops_counts_and_says_nothing_each_time() -> None:
    code = """
finish(1)
wait(lambda counts: False, 1)  # the first is on its way, and hangs
for _ in range(10):
    finish(100)
    time.sleep(0.3)
say(counts=spans.counts())
"""
    hang = threading.Event()
    with over_grpc(hang=hang) as receiver:
        ran = Ran(
            code,
            **endpoint(receiver.port),
            OTEL_EXPORTER_OTLP_TIMEOUT="30",
            OTEL_BSP_MAX_QUEUE_SIZE="16",
        )
        hang.set()
    counts = ran.said[0]["counts"]
    assert counts["sent"] == counts["lost"] == 0
    assert 16 <= counts["waiting"] <= 32, "the outbox's queue and the processor's, each bounded"
    in_call = 1001 - counts["waiting"] - counts["dropped"]
    assert 1 <= in_call <= 16
    assert len(ran.warnings) <= 1, "the one about the receiver"


def test_a_receiver_that_comes_up_late_gets_what_is_new(tmp_path: Path) -> None:
    port = free_port()
    code = """
from pathlib import Path
folder = Path(os.environ["FOLDER"])
finish(1, "early-")
wait(lambda counts: counts["lost"] == 1)
(folder / "lost").touch()
wait(lambda counts: (folder / "up").exists())
for number in range(200):
    finish(1, f"late-{number}-")
    if spans.counts()["sent"]:
        break
    time.sleep(0.2)
say(counts=spans.counts())
"""
    environment = {**endpoint(port), "OTEL_EXPORTER_OTLP_TIMEOUT": "1", "FOLDER": str(tmp_path)}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: Ran(code, **environment))
        while not (tmp_path / "lost").exists() and not running.done():
            time.sleep(0.05)
        with over_grpc(port) as receiver:
            (tmp_path / "up").touch()
            got = receiver.wait_for(bool, 60)
            ran = running.result()
    assert got and got[0].attributes["stallscope.request.id"].startswith("late-")
    assert ran.said[0]["counts"]["sent"] >= 1 and ran.said[0]["counts"]["lost"] >= 1
    assert len(ran.warnings) == 1


# Faults of our own ----------------------------------------------------------------------------


def test_a_span_that_cannot_be_made_is_counted_and_the_next_is_sent() -> None:
    code = """
spans.finished(operation("bad", start_ns="no time"))
spans.finished(None)
finish(1)
wait(lambda counts: counts["sent"] == 1)
say(counts=spans.counts(), faults=status()["faults"])
"""
    with over_grpc() as receiver:
        ran = Ran(code, **endpoint(receiver.port))
    assert ran.said[0]["counts"]["sent"] == 1
    assert ran.said[0]["faults"] == {"span": 2}
    assert [span.attributes["stallscope.request.id"] for span in receiver.spans] == ["r0"]


def test_another_providers_export_errors_are_still_heard() -> None:
    code = """
finish(1)
wait(lambda counts: counts["lost"] == 1)
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
theirs = TracerProvider(shutdown_on_exit=False)
theirs.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(timeout=0.5)))
with theirs.get_tracer("theirs").start_as_current_span("x"):
    pass
say(global_provider=type(trace.get_tracer_provider()).__name__)
"""
    ran = Ran(code, **endpoint(free_port()), OTEL_EXPORTER_OTLP_TIMEOUT="0.5")
    assert ran.said[0] == {"global_provider": "ProxyTracerProvider"}
    assert sum("no spans reach" in line for line in ran.warnings) == 1
    assert sum("Failed to export traces" in line for line in ran.warnings) == 1


@pytest.fixture
def faults() -> Iterator[Counter[str]]:
    recorder.faults.clear()
    yield recorder.faults
    recorder.faults.clear()


class BrokenOutbox(spans.Outbox):
    """An outbox with a bug in what a hand-over does."""

    def start(self) -> None:
        raise RuntimeError("a bug in the outbox")


def test_a_bug_in_the_outbox_is_a_counted_fault(
    monkeypatch: pytest.MonkeyPatch, faults: Counter[str]
) -> None:
    monkeypatch.setattr(spans, "outbox", BrokenOutbox())
    spans.finished(spans.Operation("load", 1, 2, 0, "r", 1, 1, 1, 1, "l1"))
    assert faults == {"spans": 1}


class Engine:
    """What the hooks see of an engine, with nothing that its span needs."""

    class config:
        chunk_size = 256

    class metadata:
        worker_id = 0
        world_size = 1

    def store(self, tokens: list[int], **kwargs: object) -> str:
        return f"stored {len(tokens)}"


def test_a_bug_in_naming_an_operation_leaves_engine_and_page_alone(
    monkeypatch: pytest.MonkeyPatch, faults: Counter[str], tmp_path: Path
) -> None:
    page = Page.create(tmp_path, {})
    monkeypatch.setattr(spans, "outbox", spans.Outbox())
    monkeypatch.setattr(recorder, "_page", page)
    store = observed("store", Engine.store, StoreHook())
    assert store(Engine(), [1] * 512, req_id="r") == "stored 512"
    counters = decode(page.path).counters
    page.close()
    assert faults == {"store": 1}, "metadata has no role"
    assert (counters["store_calls"], counters["store_tokens"]) == (1, 512)
    assert counters["hook_faults"] == 1
