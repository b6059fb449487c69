"""The spans of a real LMCache engine at a real OTLP receiver, against what the engine did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.patched_engine.decode import Decoded, decode
from tests.patched_engine.telemetry import traced_engine as engine
from tests.patched_engine.telemetry.engine import Run
from tests.patched_engine.telemetry.engine import traced_engine as running
from tests.patched_engine.telemetry.receiver import Span, over_grpc

WALL_SLACK_NS = 2_000_000  # of a wall clock that is slewed meanwhile


@dataclass(frozen=True)
class Traced:
    mode: str
    run: Run
    spans: list[Span]
    page: Decoded | None


# Mode, LMCache's version, and the pages' folder: none named, one that is there, one that is not.
CASES = [
    ("sync", "0.5.5", "present"),
    ("sync", "0.5.6", "missing"),
    ("async", "0.5.5", ""),
    ("async", "0.5.6", "present"),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    mode, version, pages = request.param
    folder = tmp_path_factory.mktemp("engine")
    (folder / "present").mkdir()
    places = {"STALLSCOPE_DIR": str(folder / pages)} if pages else {}
    with (
        over_grpc() as receiver,
        running(
            folder,
            mode,
            version,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
            OTEL_BSP_SCHEDULE_DELAY="100",
            **places,
        ) as run,
    ):
        count = len(expected(mode, run))
        spans = receiver.wait_for(lambda got: len(got) >= count, of_pid=run.end["pid"])
        page = decode(next((folder / "present").glob("*.page"))) if pages == "present" else None
        yield Traced(mode, run, spans, page)


def expected(mode: str, run: Run) -> list[tuple[str, dict[str, Any], bool]]:
    """(name, attributes, whether an error) in the order in which the operations start."""
    full, chunk_bytes = engine.FULL_TOKENS, engine.CHUNK_BYTES
    moved = engine.CHUNKS * chunk_bytes
    database = {
        "db.system.name": "redis",
        "db.operation.name": "BATCH GET",
        "db.operation.batch.size": engine.CHUNKS,
        "server.address": "127.0.0.1",
        "server.port": run.shard_port,
    }

    def worker(
        kind: str, request: str, asked: int, tokens: int, chunks: int, size: int, **more: Any
    ) -> tuple[str, dict[str, Any], bool]:
        facts = {
            "stallscope.role": "worker",
            "stallscope.rank": engine.RANK,
            "stallscope.request.id": request,
            "stallscope.asked_tokens": asked,
            "stallscope.tokens": tokens,
            "stallscope.chunks": chunks,
            "stallscope.bytes": size,
        }
        return f"stallscope.{kind}", facts | more, "error.type" in more

    def scheduler(request: str, tokens: int, **more: Any) -> tuple[str, dict[str, Any], bool]:
        name, facts, is_error = worker(
            "lookup", request, engine.TOKENS, tokens, tokens // engine.CHUNK_TOKENS, 0, **more
        )
        del facts["stallscope.rank"]
        return name, facts | {"stallscope.role": "scheduler"}, is_error

    def found(request: str, tier: str, **read: Any) -> tuple[str, dict[str, Any], bool]:
        """The rank's part of a lookup: it counts, or where loading is asynchronous it reads."""
        if mode == "sync":
            return worker("lookup", request, full, full, engine.CHUNKS, 0)
        more = {"stallscope.tier": tier, **read}
        return worker("prefetch", request, full, full, engine.CHUNKS, moved, **more)

    first = 2 * engine.CHUNK_TOKENS
    rest, rest_chunks = engine.TOKENS - first, engine.CHUNKS - 2
    load = (engine.TOKENS, full, engine.CHUNKS, moved)
    read = database if mode == "sync" else {}  # by the load itself, or by its prefetch
    l1 = {"stallscope.tier": "l1"}
    return [
        worker("store", "r1", first, first, 2, 2 * chunk_bytes, **l1),
        worker("store", "r1", rest, rest, rest_chunks, rest_chunks * chunk_bytes, **l1),
        scheduler("r2", full),
        found("r2", "l2", **database),
        worker("load", "r2", *load, **{"stallscope.tier": "l2"}, **read),
        worker("store", "r3", engine.TOKENS, *load[:1], *load[2:], **l1),
        scheduler("r3", full),
        found("r3", "l1"),
        worker("load", "r3", *load, **l1),
        worker(
            "store",
            "r4",
            *(engine.TOKENS, engine.TOKENS, 0, 0),
            **{"error.type": "ZeroDivisionError"},
        ),
        scheduler("r5", 0, **{"error.type": "timeout"}),
    ]


def test_each_operation_is_one_span_with_what_it_moved(traced: Traced) -> None:
    seen = [(span.name, span.attributes, span.is_error) for span in traced.spans]
    assert seen == expected(traced.mode, traced.run)


def test_the_engines_work_is_untouched(traced: Traced) -> None:
    full = engine.FULL_TOKENS
    figures = [(step["did"], step["result"]) for step in traced.run.did]
    assert figures == [
        *[("store", None)] * 2,
        *[("lookup", full), ("load", full), ("store", None), ("lookup", full), ("load", full)],
        *[("store", None), ("lookup", 0)],
    ]
    assert [step["error"] for step in traced.run.did if step["error"]] == ["ZeroDivisionError"]
    assert traced.run.end["bytes_equal"]


def test_a_span_starts_and_ends_with_its_operation(traced: Traced) -> None:
    kinds = {"stallscope.store", "stallscope.load"}
    spans = [
        span
        for span in traced.spans
        if span.name in kinds or span.attributes["stallscope.role"] == "scheduler"
    ]
    assert len(spans) == len(traced.run.did)
    for span, step in zip(spans, traced.run.did, strict=True):
        assert step["start_ns"] - WALL_SLACK_NS < span.start_ns <= span.end_ns
        assert span.end_ns < step["end_ns"] + WALL_SLACK_NS
    waited = spans[-1]
    assert waited.end_ns - waited.start_ns > engine.LOOKUP_TIMEOUT_SECONDS * 0.9e9


def test_the_page_and_the_spans_have_the_same_times(traced: Traced) -> None:
    if traced.page is None:
        assert traced.run.end["status"]["page"] is None
        return
    durations = [operation.end_ns - operation.start_ns for operation in traced.page.operations]
    assert sorted(durations) == sorted(span.end_ns - span.start_ns for span in traced.spans)


def test_the_resource_names_the_engine_and_its_rank(traced: Traced) -> None:
    for span in traced.spans:
        assert span.scope == "stallscope"
        assert span.resource["service.name"] == "stallscope"
        assert span.resource["stallscope.engine_id"] == "engine-under-test"
        assert span.resource["stallscope.rank"] == engine.RANK


def test_the_spans_of_a_request_are_one_trace(traced: Traced) -> None:
    requests = {span.attributes["stallscope.request.id"] for span in traced.spans}
    traces = {span.trace_id for span in traced.spans}
    pairs = {(s.attributes["stallscope.request.id"], s.trace_id) for s in traced.spans}
    assert len(requests) == len(traces) == len(pairs) == 5


def test_the_global_provider_is_left_alone(traced: Traced) -> None:
    assert traced.run.end["global_provider"] == "ProxyTracerProvider"


def test_nothing_went_wrong_on_the_way(traced: Traced) -> None:
    faults = traced.run.end["status"]["faults"]
    has_no_folder = traced.page is None and traced.run.end["status"]["folder"]
    assert set(faults) == ({"page"} if has_no_folder else set())
    assert traced.run.end["status"]["spans"]["lost"] == 0
    assert traced.run.end["status"]["spans"]["dropped"] == 0


def test_without_an_endpoint_nothing_of_it_is_there(tmp_path: Path) -> None:
    with running(tmp_path, "sync", STALLSCOPE_DIR=str(tmp_path)) as run:
        assert run.end["installed"] and run.end["status"]["page"]
        assert run.end["status"]["spans"] == {} == run.end["status"]["faults"]
        # LMCache's own logging imports the SDK, so that its presence here says nothing of us.
        assert run.end["imported"] == []
        assert not {"stallscope-spans", "OtelBatchSpanRecordProcessor"} & {*run.end["threads"]}
        assert run.end["global_provider"] == "ProxyTracerProvider"
