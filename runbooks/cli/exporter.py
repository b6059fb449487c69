"""`stallscope exporter`: the sidecar that serves what diagnose sees, as Prometheus metrics."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.diagnose import FOLDER_VARIABLE
from runbooks.cli.parser import UsageError

if TYPE_CHECKING:
    from exporters.capture import CaptureSettings

DEFAULT_LISTEN: Final = "127.0.0.1:9477"
ALL: Final = "all"
PAGES: Final = "pages"
SHARDS: Final = "shards"
ROLES: Final = (ALL, PAGES, SHARDS)
MOST_SHARDS: Final = 1024
_RANK: Final = "{rank}"
_EXAMPLES: Final = """examples:
  stallscope exporter --from /dev/shm/stallscope
  stallscope exporter --listen 0.0.0.0:9477 --valkey redis://valkey-0:6379
  stallscope exporter --collect pages --from /dev/shm/stallscope
  stallscope exporter --collect shards --valkey 'resp://v-{rank}' --shards 8
  curl -s http://127.0.0.1:9477/metrics | grep stallscope_finding
environment, for shards that ask who we are (never on the command line):
  STALLSCOPE_VALKEY_USERNAME, STALLSCOPE_VALKEY_PASSWORD or _PASSWORD_FILE,
  STALLSCOPE_VALKEY_CA_FILE (with rediss:// or valkeys://)
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
            help="a cache shard; once for each shard, or once with {rank} in it and --shards",
        )
        parser.add_argument(
            "--shards",
            type=int,
            metavar="N",
            help="how many shards a --valkey URL with {rank} in it stands for, from rank 0",
        )
        parser.add_argument(
            "--collect",
            choices=ROLES,
            default=ALL,
            help="pages: a pod's sidecar, which asks no shard; shards: one for the whole fleet, "
            f"which reads no page (default: {ALL} that is given)",
        )
        parser.add_argument(
            "--listen",
            default=DEFAULT_LISTEN,
            metavar="HOST:PORT",
            help=f"where to serve /metrics (default: {DEFAULT_LISTEN})",
        )
        parser.add_argument(
            "--web-config",
            metavar="FILE",
            help="TLS and users, in the form of Prometheus' web configuration file",
        )
        parser.add_argument(
            "--capture-dir",
            metavar="DIR",
            help="on a critical finding save a bundle of the last 10 minutes there: one for each "
            "finding in 30 min, the newest 5, 200 MB at most",
        )
        parser.add_argument(
            "--record",
            metavar="FILE",
            help="write pictures there as they come; read it with diagnose --from",
        )
        parser.add_argument(
            "--every", type=float, default=5.0, metavar="S", help="seconds between them (5)"
        )
        parser.add_argument(
            "--acl",
            action="store_true",
            help="print the command that makes the least Valkey user it needs, and end",
        )
        parser.add_argument(
            "--json", action="store_true", help="say where it listens as one JSON object"
        )

    def run(self, args: argparse.Namespace) -> int:
        from exporters.readers.shard_access import AccessError
        from exporters.readers.shard_acl import setuser
        from runbooks.cli.terminal import emit

        if args.acl:
            emit(setuser())
            return exit_codes.OK
        host, port = listen_address(args.listen)
        urls = shard_urls(args.valkey, args.shards)
        _check_role(args.collect, args.source, urls)
        pages_dir = None if args.collect == SHARDS else _pages_dir(args.source, urls)
        _check_urls(urls)

        from exporters import web_config
        from exporters.capture import Capturer
        from exporters.server import MetricsServer
        from exporters.ticker import Ticker
        from runbooks.compose import live_evaluator

        try:
            web = web_config.read(Path(args.web_config)) if args.web_config else None
        except web_config.WebConfigError as error:
            raise UsageError(f"--web-config: {error}") from error
        capturer = Capturer(_capture_settings(args), pages_dir)
        # Blocked before any thread starts, so that all inherit it and `sigwait` below gets them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            evaluator = live_evaluator(pages_dir, tuple(urls), with_samples=True)
            ticker = Ticker(evaluator, take=capturer.take)
        except AccessError as error:
            raise UsageError(str(error)) from error
        try:
            server = MetricsServer(ticker, pages_dir, host, port, web, capturer)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {args.listen}: {error.strerror}; give another --listen"
            ) from error
        capturer.start()
        ticker.start()
        server.start()
        shown, real_port = server.address
        url = f"{server.scheme}://{f'[{shown}]' if ':' in shown else shown}:{real_port}/metrics"
        emit(json.dumps({"schema": 1, "listening": url}) if args.json else f"serving {url}")
        received = signal.sigwait(_ENDING)
        server.stop()
        ticker.stop()
        capturer.stop()
        return exit_codes.INTERRUPTED if received == signal.SIGINT else exit_codes.OK


_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def _capture_settings(args: argparse.Namespace) -> CaptureSettings:
    """Where bundles and pictures go; checked now, since later nobody looks. Raises UsageError."""
    from exporters.capture import CaptureSettings
    from exporters.recording import Recorder

    if not 1.0 <= args.every <= 3600.0:
        raise UsageError(f"--every {args.every:g}: give seconds from 1 to 3600")
    folder = Path(args.capture_dir) if args.capture_dir else None
    record = Path(args.record) if args.record else None
    if folder is not None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--capture-dir {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"--capture-dir {folder}: this user may not write there")
    if record is not None:
        recorder = Recorder(record)
        try:
            recorder.open()
        except OSError as error:
            raise UsageError(f"--record {record}: {error.strerror}") from error
        recorder.close()
    return CaptureSettings(folder, record, args.every)


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


def shard_urls(given: list[str], count: int | None) -> list[str]:
    """The shards asked for, a URL with {rank} filled in for each of `count`. Raises UsageError."""
    from exporters.readers.shard_url import without_credentials

    templates = [url for url in given if _RANK in url]
    if count is None:
        if templates:
            shown = without_credentials(templates[0])
            raise UsageError(f"--valkey: {shown} stands for several shards; say how many: --shards")
        return given
    if not 1 <= count <= MOST_SHARDS:
        raise UsageError(f"--shards: {count} is not a number from 1 to {MOST_SHARDS}")
    if len(given) != 1 or not templates:
        raise UsageError(f"--shards goes with one --valkey URL that has {_RANK} in it")
    return [templates[0].replace(_RANK, str(rank)) for rank in range(count)]


def _check_role(role: str, source: str | None, urls: list[str]) -> None:
    """Each role collects its own half: a hundred sidecars would ask each shard a hundred times."""
    if role == PAGES and urls:
        raise UsageError("--collect pages asks no shard; leave out --valkey, or --collect")
    if role == SHARDS and source is not None:
        raise UsageError("--collect shards reads no page; leave out --from, or --collect")
    if role == SHARDS and not urls:
        raise UsageError("--collect shards needs --valkey URL")


def _check_urls(urls: list[str]) -> None:
    from exporters.readers.shard_access import PASSWORD, PASSWORD_FILE
    from exporters.readers.shard_url import ShardUrlError, parse

    for url in urls:
        try:
            parsed = parse(url)
        except ShardUrlError as error:
            raise UsageError(f"--valkey: {error}") from error
        if parsed.password is not None:
            raise UsageError(
                f"--valkey: {parsed.shown} is given with a password, which every user of this host "
                f"can then read; set {PASSWORD_FILE} or {PASSWORD}"
            )


COMMAND: Command = _Exporter()
