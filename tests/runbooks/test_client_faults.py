"""Real faults done to a stock LMCache engine and its real shard, named by diagnose from outside."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from detectors import thresholds as t
from runbooks.cli import exit_codes
from tests.detectors import stock_rank
from tests.detectors.stock_rank import BLOCKING_SECONDS, LOOKUP_SECONDS, RANK
from tests.runbooks.command_line import COMMAND, ROOT, environment, stallscope
from tests.servers import valkey_server

# Each fault once is in the default run, here or in tests/lab/test_incidents.py.
soak = pytest.mark.soak
VERSIONS = pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
TRIES = 4
NAMED_WITHIN_SECONDS = 5.0
ANSWER_SECONDS = 4.0
# A look at the picture before a fault is decidable costs nothing; importing on a busy machine does.
BUSY_SECONDS = 4.0


class Struck(Exception):
    """The stock client lost another completion by itself (upstream #5547): a run about that one."""


def again(test):
    """Make a struck run again, and say so: it shows another fault than the one asked for."""

    @functools.wraps(test)
    def run(tmp_path, **arguments):
        for number in range(TRIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            try:
                return test(tmp_path=folder, **arguments)
            except Struck:
                warnings.warn("the stock client lost a completion: run again", stacklevel=1)
        pytest.skip(f"the stock client lost a completion in {TRIES} runs running (upstream #5547)")

    return run


@dataclass
class Rank:
    """A stock rank, its pages and its shard."""

    process: subprocess.Popen[str]
    pages: Path
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def begin(self) -> None:
        """Have it do its fault, and wait until that is under way."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("begun"):
                return
        pytest.fail("the rank ended before its fault")

    def diagnose(self, *, see_shard: bool = True):
        arguments = ["--valkey", self.url] if see_shard else []
        return stallscope("diagnose", "--from", self.pages, "--json", *arguments)


@contextlib.contextmanager
def rank(fault: str, folder: Path, version: str = "0.5.5") -> Iterator[Rank]:
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed")
    path = str(ROOT)
    if version == "0.5.6":
        second = Path(sys.prefix) / "lmcache-0.5.6"
        if not second.is_dir():
            pytest.skip("LMCache 0.5.6 is not beside the environment (make setup)")
        path = f"{second}:{path}"
    with valkey_server() as port:
        process = subprocess.Popen(
            [sys.executable, "-m", stock_rank.__name__, str(port), fault],
            cwd=folder,
            env=environment(
                STALLSCOPE_DIR=str(folder),
                STALLSCOPE_PATCHES="none",  # the engine as it is shipped
                PYTHONPATH=path,
                PYTHONHASHSEED="0",
                LMCACHE_LOG_LEVEL="ERROR",
                LMCACHE_TRACK_USAGE="false",
                PROMETHEUS_MULTIPROC_DIR=str(folder),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert any(line.startswith("stored") for line in process.stdout)
            try:
                yield Rank(process, folder, port)
            except AssertionError:
                process.kill()
                if "struck" in process.communicate()[0]:
                    raise Struck from None
                raise
        finally:
            process.kill()
            process.wait()


def _wait_for_a_finding(of: Rank, onset_seconds: float, **options):
    """Diagnose again and again until it names something; the first answer in time counts."""
    time.sleep(onset_seconds)
    decidable = time.monotonic()
    while True:
        run = of.diagnose(**options)
        found = json.loads(run.out)["findings"]
        if found:
            assert time.monotonic() - decidable < NAMED_WITHIN_SECONDS + BUSY_SECONDS
            assert run.seconds < ANSWER_SECONDS + BUSY_SECONDS
            return found, run
        assert time.monotonic() - decidable < NAMED_WITHIN_SECONDS + BUSY_SECONDS, run.out


@again
def test_a_healthy_rank_is_silent(tmp_path):
    with rank("none", tmp_path) as of:
        of.begin()
        time.sleep(1.0)
        run = of.diagnose()
        assert json.loads(run.out)["findings"] == []


@soak
@VERSIONS
@again
def test_a_lost_completion_is_a_stuck_lookup_with_its_cause(tmp_path, version):
    with rank("lost-completion", tmp_path, version) as of:
        of.begin()
        early = of.diagnose()  # not yet decidable: no guess
        if early.seconds < t.STUCK_TIMEOUTS * LOOKUP_SECONDS:
            assert json.loads(early.out)["findings"] == []
        found, run = _wait_for_a_finding(of, t.STUCK_TIMEOUTS * LOOKUP_SECONDS)
    first = found[0]
    assert (first["id"], first["rank"], first["cause"]) == ("stuck-lookup", RANK, "lost-completion")
    assert first["shard"] == of.url
    assert first["confidence"] > 0.9
    assert first["next"] == f"py-spy dump --pid {of.process.pid}"
    assert run.code == exit_codes.CRITICAL
    assert len(found) == 1


@soak
@again
def test_without_the_shard_the_confidence_is_halved_and_that_is_said(tmp_path):
    with rank("lost-completion", tmp_path) as of:
        of.begin()
        found, _ = _wait_for_a_finding(of, t.STUCK_TIMEOUTS * LOOKUP_SECONDS, see_shard=False)
    assert (found[0]["id"], found[0]["cause"]) == ("stuck-lookup", "lost-completion")
    assert found[0]["confidence"] < 0.5
    assert "unseen" in found[0]["summary"]


@pytest.mark.parametrize("version", ["0.5.5", pytest.param("0.5.6", marks=soak)])
@again
def test_a_prefetch_whose_backend_raised_is_a_stuck_lookup_of_the_other_cause(tmp_path, version):
    with rank("no-answer", tmp_path, version) as of:
        of.begin()
        found, _ = _wait_for_a_finding(of, t.STUCK_TIMEOUTS * LOOKUP_SECONDS)
    first = found[0]
    assert (first["id"], first["rank"], first["cause"]) == ("stuck-lookup", RANK, "no-answer")


@soak
@VERSIONS
@again
def test_a_missing_key_in_a_batch_is_a_wedged_connection_of_that_shard(tmp_path, version):
    with rank("missing-key", tmp_path, version) as of:
        of.begin()
        found, run = _wait_for_a_finding(of, 0.0)
    first = found[0]
    assert (first["id"], first["rank"], first["shard"]) == ("wedged-connection", RANK, of.url)
    assert first["cause"] == "missing-key"
    assert f"1 of {stock_rank.CHUNKS} keys" in first["summary"]
    assert run.code == exit_codes.CRITICAL


@again
def test_a_key_that_was_stored_anew_leaves_the_connection_wedged(tmp_path):
    with rank("missing-key", tmp_path) as of, redis.Redis(port=of.port) as client:
        before = set(client.keys())
        of.begin()
        deadline = time.monotonic() + 20
        while not (missing := before - set(client.keys())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(missing) == 1  # none: the rank was struck before it came to its fault
        (gone,) = missing
        time.sleep(0.5)  # the GET of it is under way
        size = client.strlen(next(iter(before - {gone})))
        client.set(gone, b"x" * size)
        found, _ = _wait_for_a_finding(of, t.STUCK_TIMEOUTS * BLOCKING_SECONDS)
    assert (found[0]["id"], found[0]["cause"]) == ("wedged-connection", "unanswered")
    assert "stored anew" in str(found[0]["evidence"])


@soak
@again
def test_evicted_keys_are_named_as_the_cause_before_what_they_do(tmp_path):
    with rank("evicted", tmp_path) as of:
        of.begin()
        found, _ = _wait_for_a_finding(of, 0.0)
    assert [f["id"] for f in found[:2]] == ["evicted-before-load", "wedged-connection"]
    assert {(f["rank"], f["shard"]) for f in found[:2]} == {(RANK, of.url)}
    assert (found[0]["cause"], found[1]["cause"]) == ("eviction", "missing-key")


@soak
@VERSIONS
@again
def test_cut_connections_make_garbage_of_a_load(tmp_path, version):
    with rank("cut-connections", tmp_path, version) as of:
        of.begin()
        found, run = _wait_for_a_finding(of, 0.0)
    assert (found[0]["id"], found[0]["rank"]) == ("load-mismatch", RANK)
    assert f"{stock_rank.CHUNKS} chunks" in found[0]["summary"]
    assert run.code == exit_codes.CRITICAL


@soak
@pytest.mark.parametrize(("sent", "cause"), [(signal.SIGSTOP, "timeout"), (signal.SIGKILL, "conn")])
@again
def test_a_frozen_or_dead_shard_is_named_and_not_the_rank_that_waits(sent, cause, tmp_path):
    with rank("none", tmp_path) as of, redis.Redis(port=of.port) as client:
        server = client.info("server")["process_id"]
        os.kill(server, sent)
        try:
            of.begin()  # its load now waits for the shard
            found, run = _wait_for_a_finding(of, t.STUCK_TIMEOUTS * LOOKUP_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGCONT)
    assert [f["id"] for f in found] == ["shard-down"]
    assert found[0]["shard"] == of.url
    assert found[0]["cause"].startswith(cause)
    assert f"rank {RANK} uses it" in found[0]["summary"]
    assert run.code == exit_codes.CRITICAL


@again
def test_the_exporter_names_it_too_and_scrapes_cost_the_shard_nothing(tmp_path):
    with rank("lost-completion", tmp_path) as of, redis.Redis(port=of.port) as client:
        exporter = subprocess.Popen(
            [
                *COMMAND,
                "exporter",
                "--from",
                tmp_path,
                "--valkey",
                of.url,
                "--listen",
                ":0",
                "--json",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        try:
            assert exporter.stdout is not None
            url = json.loads(exporter.stdout.readline())["listening"]
            time.sleep(2.0)
            assert not _lists(client), "nothing is suspicious yet"
            of.begin()
            began = time.monotonic()
            scrapes = 0
            while not re.search(r'^stallscope_finding\{.*"stuck-lookup"', _scrape(url), re.M):
                scrapes += 1
                assert time.monotonic() - began < NAMED_WITHIN_SECONDS + BUSY_SECONDS
                time.sleep(0.02)
            seconds = time.monotonic() - began
            assert seconds >= t.STUCK_TIMEOUTS * LOOKUP_SECONDS
            for _ in range(50):
                _scrape(url)
            assert scrapes > 20
            assert 0 < _lists(client) <= seconds + 3, "one a tick, however often it is scraped"
        finally:
            exporter.kill()
            exporter.communicate()


def _scrape(url: str) -> str:
    with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1"), timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def _lists(client: redis.Redis) -> int:
    """How often the shard was asked for its clients, less the rank's own asking at its start."""
    stats = client.info("commandstats")
    return int(stats.get("cmdstat_client|list", {}).get("calls", 0)) - 1
