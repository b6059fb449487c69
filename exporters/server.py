"""`/metrics` and `/snapshot`: answered from the last tick, and no request reads a source."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from exporters import catalog
from exporters.capture import Capturer
from exporters.metrics import by_metric, samples
from exporters.sample import Sample
from exporters.snapshot_json import to_json
from exporters.ticker import Tick, Ticker
from exporters.web_config import WebConfig

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

logger = logging.getLogger("stallscope")

# Older values are not shown: a graph with a gap says more than one that stands still.
STALE_AFTER_SECONDS = 10.0
# Scrapes rendered at once; who gets no turn within the wait is told to come again.
MOST_RENDERING = 8
TURN_WAIT_SECONDS = 1.0
RETRY_AFTER_SECONDS = 5


class TickCollector(Collector):
    """Exposes the last tick to prometheus-client."""

    def __init__(
        self,
        latest: Callable[[], Tick | None],
        pages_dir: Path | None,
        clock: Callable[[], float] = time.monotonic,
        capturer: Capturer | None = None,
    ) -> None:
        self._capturer = capturer
        self._latest = latest
        self._pages_dir = pages_dir
        self._clock = clock

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        for metric, found in by_metric(self._samples()).items():
            suffix = "_total" if metric.type == "counter" else ""
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.type)
            for sample in found:
                labels = dict(zip(metric.labels, map(_encodable, sample.labels), strict=True))
                if sample.bound:
                    labels["le"] = sample.bound
                family.add_sample(family.name + (suffix or sample.suffix), labels, sample.value)
            yield family

    def _samples(self) -> Iterator[Sample]:
        capturer = self._capturer
        yield Sample(catalog.CAPTURES, (), 0 if capturer is None else capturer.captures)
        yield Sample(catalog.CAPTURE_FAULTS, (), 0 if capturer is None else capturer.faults)
        tick = self._latest()
        if tick is None:
            yield Sample(catalog.TICKS, (), 0)
            return
        age_seconds = self._clock() - tick.began_seconds
        yield Sample(catalog.TICKS, (), tick.number)
        yield Sample(catalog.TICK_AGE, (), age_seconds)
        yield Sample(catalog.TICK_DURATION, (), tick.duration_seconds)
        if age_seconds <= STALE_AFTER_SECONDS:
            yield from samples(tick.evaluation, self._pages_dir)


def _encodable(label: str) -> str:
    """A page's JSON may hold half a surrogate pair, which would cost the whole scrape."""
    return label.encode("utf-8", "replace").decode()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64
    tls: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.tls is None:
            return connection, address
        connection.settimeout(_QuietHandler.timeout)
        # The handshake comes with the first read, in the request's own thread.
        return (
            self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False),
            address,
        )

    def server_bind(self) -> None:
        # WSGIServer asks for the host's full name here, which can wait for a name server.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a client that went away is no news
            logger.warning("a request from %s failed: %r", client_address, error)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # a client that sends nothing must not keep its thread

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:
        return


class MetricsServer:
    """Serves /metrics, /snapshot, /-/healthy and /-/ready on one address until `stop`.

    `web` says who may read the first two. Raises OSError if the address is taken.
    """

    def __init__(
        self,
        ticker: Ticker,
        pages_dir: Path | None,
        host: str,
        port: int,
        web: WebConfig | None = None,
        capturer: Capturer | None = None,
    ) -> None:
        registry = CollectorRegistry()
        registry.register(TickCollector(ticker.latest, pages_dir, capturer=capturer))
        self._metrics = make_wsgi_app(registry)
        self._ticker = ticker
        self._turns = threading.BoundedSemaphore(MOST_RENDERING)
        kind = _ServerV6 if ":" in host else _Server
        self._web = web or WebConfig()
        self._server = kind((host, port), _QuietHandler)
        self._server.tls = self._web.tls
        self._server.set_app(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(0.1,),  # how often it looks whether it should end
            name="stallscope-http",
            daemon=True,
        )

    @property
    def scheme(self) -> str:
        """ "https" where the web configuration has TLS."""
        return "http" if self._web.tls is None else "https"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, the real one where 0 was asked for."""
        return str(self._server.server_address[0]), int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path in ("/metrics", "/snapshot"):
            users = self._web.users
            is_allowed = users is None or users.allows(environ.get("HTTP_AUTHORIZATION", ""))
            if is_allowed is None:
                return _unavailable(start_response, b"too many passwords to check\n")
            if not is_allowed:
                start_response("401 Unauthorized", [*_PLAIN, _ASK])
                return [b"not for everybody: give a user and a password\n"]
            return self._in_turn(path, environ, start_response)
        if path == "/-/ready":
            tick = self._ticker.latest()
            if tick is None or time.monotonic() - tick.began_seconds > STALE_AFTER_SECONDS:
                why = b"not ready: no tick has ended lately\n"
                return _unavailable(start_response, why)
        known = {
            "/": b"stallscope exporter: /metrics /snapshot\n",
            "/-/healthy": b"ok\n",
            "/-/ready": b"ready\n",
        }
        status = "200 OK" if path in known else "404 Not Found"
        start_response(status, [*_PLAIN])
        return [known.get(path, b"not found: /metrics and /snapshot are what is here\n")]

    def _in_turn(
        self, path: str, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        if not self._turns.acquire(timeout=TURN_WAIT_SECONDS):
            return _unavailable(start_response, b"too many scrapes at once\n")
        try:
            if path == "/snapshot":
                return self._snapshot(start_response)
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer  # rendered whole
        finally:
            self._turns.release()

    def _snapshot(self, start_response: StartResponse) -> Iterable[bytes]:
        """The last tick whole, with its age: {"schema", "age_seconds", "evaluation"}."""
        tick = self._ticker.latest()
        age_seconds = 0.0 if tick is None else time.monotonic() - tick.began_seconds
        if tick is None or age_seconds > STALE_AFTER_SECONDS:
            return _unavailable(start_response, b"no tick has ended lately\n")
        told = {"age_seconds": age_seconds, **to_json(tick.evaluation)}
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(told, allow_nan=False, separators=(",", ":")).encode()]


_PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)
_ASK = ("WWW-Authenticate", 'Basic realm="stallscope"')


def _unavailable(start_response: StartResponse, why: bytes) -> Iterable[bytes]:
    headers = [*_PLAIN, ("Retry-After", str(RETRY_AFTER_SECONDS))]
    start_response("503 Service Unavailable", headers)
    return [why]
