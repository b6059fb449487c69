"""Turns finished operations into OpenTelemetry spans and sends them over OTLP.

Imported only where spans are asked for. The provider is our own and is never made the global
one. What the environment says of endpoint, protocol, headers, service name, resource attributes,
sampling and batches is read by the SDK; the defaults that differ from its own are below.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from patched_engine import recorder
from patched_engine.telemetry.spans import Operation

DEFAULT_SERVICE_NAME = "stallscope"
DEFAULT_TIMEOUT_SECONDS = 3.0  # the SDK's 10 s would hold a batch, and the exit, for longer
DEFAULT_BATCH = 64  # the SDK's 512 are encoded in one go, with the interpreter held
EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
# Schemes of LMCache's remote_url that a server of the Redis protocol answers.
REDIS_SCHEMES = ("redis", "rediss", "resp", "valkey", "valkeys")

_local = threading.local()  # .exporting: this thread is inside an export of ours


class RequestIds(RandomIdGenerator):
    """Gives all spans of one request of one engine the same trace, in every process alike."""

    def __init__(self, engine_id: str) -> None:
        self._engine_id = engine_id
        self.request_id = ""  # of the span about to start; one thread makes them all

    def generate_trace_id(self) -> int:
        if not self.request_id:
            return super().generate_trace_id()
        name = f"{self._engine_id}\0{self.request_id}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big")


class WatchedExporter(SpanExporter):
    """An exporter that is counted, and whose complaints are heard once."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._closed = False
        self.taken = self.sent = self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        _local.exporting = True
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            recorder.fault("span export", error)
            result = SpanExportResult.FAILURE
        finally:
            _local.exporting = False
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            if not self.lost:
                recorder.logger.warning(
                    "stallscope: no spans reach %s: they are dropped and counted until it answers",
                    _endpoint(),
                )
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()


class Sender:
    """Provider, processor and exporter of this process. One thread sends; any may abort.

    Raises what `import_exporter` raises, and ValueError for figures that the SDK refuses.
    """

    def __init__(self, identity: Mapping[str, object], most_queued: int) -> None:
        self._watched = WatchedExporter(_exporter())
        for name in EXPORTER_LOGGERS:
            filters = logging.getLogger(name).filters
            if _is_not_ours not in filters:
                filters.insert(
                    0, _is_not_ours
                )  # before the SDK's, which would count ours as theirs
        self._ids = RequestIds(str(identity.get("engine_id", "")))
        self._provider = TracerProvider(
            resource=_resource(identity), id_generator=self._ids, shutdown_on_exit=False
        )
        batch = None if OTEL_BSP_MAX_EXPORT_BATCH_SIZE in os.environ else DEFAULT_BATCH
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._watched,
                max_queue_size=most_queued,
                max_export_batch_size=min(batch, most_queued) if batch else None,
            )
        )
        self._tracer = self._provider.get_tracer("stallscope", _version())
        self._shard_url = str(identity.get("shard_url", ""))
        self._most_queued = most_queued
        self._given = 0

    @property
    def sent(self) -> int:
        """Spans that the receiver took."""
        return self._watched.sent

    @property
    def lost(self) -> int:
        """Spans that it did not, though they were offered."""
        return self._watched.lost

    @property
    def waiting(self) -> int:
        """Spans in the processor's queue."""
        return self._given - self._watched.taken

    def has_room(self) -> bool:
        """Whether the processor's queue takes another: it would drop its oldest, and log it."""
        return self.waiting < self._most_queued

    def send(self, operation: Operation, offset_ns: int) -> None:
        """Give the processor one span; `offset_ns` is wall clock less CLOCK_MONOTONIC."""
        self._ids.request_id = operation.request_id
        span = self._tracer.start_span(
            f"stallscope.{operation.kind}",
            context=Context(),
            attributes=attributes(operation, self._shard_url),
            start_time=operation.start_ns + offset_ns,
        )
        if operation.error:
            span.set_attribute("error.type", operation.error)
            span.set_status(Status(StatusCode.ERROR))
        if span.get_span_context().trace_flags.sampled:
            self._given += 1
        span.end(end_time=operation.end_ns + offset_ns)

    def close(self) -> None:
        """Send what is queued and stop; may take as long as the receiver does."""
        self._provider.shutdown()

    def abort(self) -> None:
        """Cut off a call under way. From another thread than `close`, which then returns."""
        self._watched.shutdown()


def attributes(operation: Operation, shard_url: str) -> dict[str, AttributeValue]:
    """A span's attributes: ours, and those of the stable database convention for reads of an L2.

    `shard_url` may hold the placeholder {rank}. A batch size of 1 is left out, as the convention
    has it.
    """
    given: dict[str, AttributeValue] = {
        "stallscope.role": "scheduler" if operation.rank is None else "worker",
        "stallscope.request.id": operation.request_id,
        "stallscope.asked_tokens": operation.asked_tokens,
        "stallscope.tokens": operation.tokens,
        "stallscope.chunks": operation.chunks,
        "stallscope.bytes": operation.size_bytes,
    }
    if operation.rank is not None:
        given["stallscope.rank"] = operation.rank
    if operation.tier:
        given["stallscope.tier"] = operation.tier
    if operation.l2_chunks:
        given.update(_database(operation, shard_url))
    return given


def _database(operation: Operation, shard_url: str) -> dict[str, AttributeValue]:
    url = urlsplit(shard_url.replace("{rank}", str(operation.rank)))
    if url.scheme not in REDIS_SCHEMES or not url.hostname:
        return {}
    count = operation.l2_chunks
    given: dict[str, AttributeValue] = {
        "db.system.name": "redis",  # the convention's name for the protocol; it has none for Valkey
        "db.operation.name": "GET" if count == 1 else "BATCH GET",
        "server.address": url.hostname,
    }
    if count > 1:
        given["db.operation.batch.size"] = count
    if url.port:
        given["server.port"] = url.port
    return given


def import_exporter() -> Callable[..., SpanExporter]:
    """The OTLP exporter of the protocol that the environment names; gRPC as the SDK's default.

    Raises ImportError where it is not installed and ValueError for a protocol that is neither
    "grpc" nor "http/protobuf".
    """
    names = (OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL)
    protocol = next((os.environ[n].strip() for n in names if os.environ.get(n)), "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        return over_grpc.OTLPSpanExporter
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        return over_http.OTLPSpanExporter
    raise ValueError(f"OTLP protocol {protocol!r} is neither 'grpc' nor 'http/protobuf'")


def _exporter() -> SpanExporter:
    timeouts = (OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT)
    timeout = None if any(n in os.environ for n in timeouts) else DEFAULT_TIMEOUT_SECONDS
    return import_exporter()(timeout=timeout)


def _resource(identity: Mapping[str, object]) -> Resource:
    """Who sends: the service's name unless the environment has one, the engine, the rank."""
    facts: dict[str, AttributeValue] = {
        "stallscope.engine_id": str(identity.get("engine_id", "")),
        "process.pid": os.getpid(),
    }
    rank = identity.get("rank")
    if isinstance(rank, int):
        facts["stallscope.rank"] = rank
    found = Resource.create(facts)
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: DEFAULT_SERVICE_NAME}))
    return found


def _is_not_ours(_record: logging.LogRecord) -> bool:
    """Keeps the exporter's lines for another provider's spans, and drops them for ours."""
    return not getattr(_local, "exporting", False)


def _endpoint() -> str:
    names = (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
    return recorder.url_without_credentials(next(filter(None, map(os.environ.get, names)), ""))


def _version() -> str:
    try:
        return metadata.version("stallscope")
    except metadata.PackageNotFoundError:
        return ""
