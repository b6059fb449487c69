"""A real OTLP receiver for tests, over gRPC or HTTP, on a free loopback port; slow where asked."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class Span:
    """One received span, its attributes as plain values."""

    name: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope: str
    trace_id: bytes
    start_ns: int
    end_ns: int
    is_error: bool


@dataclass
class Receiver:
    """What arrived so far."""

    port: int = 0
    spans: list[Span] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    calls: int = 0
    hang: threading.Event | None = None

    def take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        self.calls += 1
        if self.hang is not None:
            self.hang.wait(60)
        self.headers.append(headers)
        for of_resource in request.resource_spans:
            resource = plain(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.spans.append(
                        Span(
                            span.name,
                            plain(span.attributes),
                            resource,
                            of_scope.scope.name,
                            span.trace_id,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code == span.status.STATUS_CODE_ERROR,
                        )
                    )

    def wait_for(
        self, enough: Callable[[list[Span]], bool], seconds: float = 30, of_pid: int | None = None
    ) -> list[Span]:
        """The spans, of one process or all, by their start; once enough or the time is up."""
        deadline = time.monotonic() + seconds
        while True:
            spans = [s for s in self.spans if of_pid in (None, s.resource["process.pid"])]
            if enough(spans) or time.monotonic() > deadline:
                return sorted(spans, key=lambda span: span.start_ns)
            time.sleep(0.05)


def plain(attributes: Any) -> dict[str, Any]:
    """OTLP's key-value list as a dict."""
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


@contextlib.contextmanager
def over_grpc(port: int = 0, hang: threading.Event | None = None) -> Iterator[Receiver]:
    """A gRPC receiver; every call waits for `hang` where it is given."""
    receiver = Receiver(hang=hang)

    class Servicer(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            headers = {str(key): str(value) for key, value in context.invocation_metadata()}
            receiver.take(request, headers)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    add_TraceServiceServicer_to_server(Servicer(), server)
    receiver.port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield receiver
    finally:
        if hang is not None:
            hang.set()
        server.stop(grace=None).wait(5)


@contextlib.contextmanager
def over_http(hang: threading.Event | None = None) -> Iterator[Receiver]:
    """A receiver of http/protobuf at /v1/traces; every call waits for `hang` where it is given."""
    receiver = Receiver(hang=hang)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(
                ExportTraceServiceRequest.FromString(body),
                {key.lower(): value for key, value in self.headers.items()},
            )
            with contextlib.suppress(OSError):  # the sender gave up meanwhile
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        if hang is not None:
            hang.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
