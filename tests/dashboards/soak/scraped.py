"""Targets whose metrics a test writes: vLLM's, which the lab's engines do not serve, and trends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Target:
    """What Prometheus scrapes: host:port, and the labels that service discovery gives it."""

    job: str
    address: str
    pod: str


@contextlib.contextmanager
def served(text: Callable[[], str], job: str, pod: str) -> Iterator[Target]:
    """A target that answers each scrape with what `text` returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Target(job, f"127.0.0.1:{server.server_address[1]}", pod)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
