"""`stallscope exporter`: the sidecar that serves what diagnose sees, as Prometheus metrics."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.diagnose import FOLDER_VARIABLE
from runbooks.cli.parser import UsageError

DEFAULT_LISTEN: Final = "127.0.0.1:9477"
_EXAMPLES: Final = """examples:
  stallscope exporter --from /dev/shm/stallscope
  stallscope exporter --listen 0.0.0.0:9477 --valkey redis://valkey-0:6379
  curl -s http://127.0.0.1:9477/metrics | grep stallscope_finding
"""


class _Exporter:
    name = "exporter"
    help = "serve findings and their figures to Prometheus, from pages and shards"
    group = "set up"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument(
            "--from",
            dest="source",
            metavar="PAGES_DIR",
            help=f"the folder of the engine's pages (default: ${FOLDER_VARIABLE})",
        )
        parser.add_argument(
            "--valkey",
            action="append",
            default=[],
            metavar="URL",
            help="a cache shard; once for each shard",
        )
        parser.add_argument(
            "--listen",
            default=DEFAULT_LISTEN,
            metavar="HOST:PORT",
            help=f"where to serve /metrics (default: {DEFAULT_LISTEN})",
        )
        parser.add_argument(
            "--json", action="store_true", help="say where it listens as one JSON object"
        )

    def run(self, args: argparse.Namespace) -> int:
        host, port = listen_address(args.listen)
        pages_dir = _pages_dir(args.source, args.valkey)
        _check_urls(args.valkey)

        from exporters.server import MetricsServer
        from exporters.ticker import Ticker
        from runbooks.cli.terminal import emit
        from runbooks.compose import live_evaluator

        # Blocked before any thread starts, so that all inherit it and `sigwait` below gets them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        ticker = Ticker(live_evaluator(pages_dir, tuple(args.valkey)))
        try:
            server = MetricsServer(ticker, pages_dir, host, port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {args.listen}: {error.strerror}; give another --listen"
            ) from error
        ticker.start()
        server.start()
        shown, real_port = server.address
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{real_port}/metrics"
        emit(json.dumps({"schema": 1, "listening": url}) if args.json else f"serving {url}")
        received = signal.sigwait(_ENDING)
        server.stop()
        ticker.stop()
        return exit_codes.INTERRUPTED if received == signal.SIGINT else exit_codes.OK


_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def listen_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT or :PORT (all interfaces). Raises UsageError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen: {text!r} is not HOST:PORT, such as {DEFAULT_LISTEN}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host or "0.0.0.0", int(port)


def _pages_dir(given: str | None, valkey_urls: list[str]) -> Path | None:
    """The page folder asked for; one that is not there yet is waited for. Raises UsageError."""
    from runbooks.sources import recognise, refusal

    text = given if given is not None else os.environ.get(FOLDER_VARIABLE, "")
    if not text:
        if given is None and valkey_urls:
            return None
        raise UsageError(f"nothing to serve; give --from PAGES_DIR, or set {FOLDER_VARIABLE}")
    source = recognise(text)
    if fault := refusal(source):
        raise UsageError(f"--from: {fault}")
    return source.path


def _check_urls(urls: list[str]) -> None:
    from exporters.readers.shard_url import ShardUrlError, parse

    for url in urls:
        try:
            parse(url)
        except ShardUrlError as error:
            raise UsageError(f"--valkey: {error}") from error


COMMAND: Command = _Exporter()
