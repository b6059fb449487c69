"""`stallscope diagnose` as the on-call engineer meets it: real page files, a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from contextlib import contextmanager

import pytest

from detectors import ALL_RULES
from exporters import page_layout as layout
from exporters import reasons
from exporters.evaluator import MOST_PICTURES, PICTURE_INTERVAL_SECONDS
from runbooks.cli import exit_codes
from tests.runbooks.command_line import COMMAND, environment, stallscope
from tests.runbooks.pages import SHAPE, add_stores, lockstep, pages

LIMIT_SECONDS = 3.0


@contextmanager
def _server(answer: bytes | None):
    """A TCP server that accepts and answers each read with `answer`, or never (None)."""
    listening = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve():
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            held.append(client)
            if answer is not None:
                client.recv(4096)
                client.sendall(answer)
                client.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        for client in held:
            client.close()


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _reasons(*arguments) -> tuple[int, list[str]]:
    run = stallscope("diagnose", "--json", *arguments)
    return run.code, [unseen["reason"] for unseen in json.loads(run.out)["unseen"]]


# What could not be seen: one line, the right code, in time ------------------------------------


def _missing(folder):
    return reasons.MISSING_FOLDER, "no such folder"


def _empty(folder):
    folder.mkdir()
    return reasons.EMPTY_FOLDER, "no page in"


def _foreign(folder):
    folder.mkdir()
    (folder / "notes.txt").write_text("hello")
    (folder / "sub").mkdir()
    return reasons.EMPTY_FOLDER, "no page in"


def _one_page(folder, data):
    folder.mkdir()
    (folder / f"x{layout.SUFFIX}").write_bytes(data)


def _not_a_page(folder):
    _one_page(folder, b"hello, this is somebody's file")
    return reasons.NOT_A_PAGE, "magic"


def _no_bytes(folder):
    _one_page(folder, b"")
    return reasons.TRUNCATED, "0 bytes"


def _half_a_page(folder):
    _one_page(folder, lockstep(2)[0].page()[: SHAPE.page_bytes // 2])
    return reasons.TRUNCATED, "holds"


def _half_a_header(folder):
    _one_page(folder, lockstep(2)[0].page()[:40])
    return reasons.TRUNCATED, "less than a header"


def _future_version(folder):
    page = bytearray(lockstep(2)[0].page())
    page[8:12] = (layout.VERSION + 1).to_bytes(4, "little")
    _one_page(folder, bytes(page))
    return reasons.FUTURE_VERSION, f"version {layout.VERSION + 1}"


def _torn_header(folder):
    page = bytearray(lockstep(2)[0].page())
    page[30] ^= 0xFF
    _one_page(folder, bytes(page))
    return reasons.TORN, "checksum"


def _fifo(folder):
    folder.mkdir()
    os.mkfifo(folder / f"x{layout.SUFFIX}")
    return reasons.NOT_A_PAGE, "not a file"


def _a_folder_named_like_a_page(folder):
    (folder / f"x{layout.SUFFIX}").mkdir(parents=True)
    return reasons.NOT_A_PAGE, "not a file"


def _dangling_link(folder):
    folder.mkdir()
    (folder / f"x{layout.SUFFIX}").symlink_to(folder / "nowhere")
    return None, ""


FAULTS = [
    _missing,
    _empty,
    _foreign,
    _not_a_page,
    _no_bytes,
    _half_a_page,
    _half_a_header,
    _future_version,
    _torn_header,
    _fifo,
    _a_folder_named_like_a_page,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_folder_that_cannot_be_read_is_one_line(fault, tmp_path):
    folder = tmp_path / "pages"
    reason, says = fault(folder)
    run = stallscope("diagnose", "--from", folder)
    assert run.code == exit_codes.UNSEEN
    assert run.seconds < LIMIT_SECONDS
    assert says in run.line()
    assert ";" in run.line()  # what and where; the mend
    assert _reasons("--from", folder) == (exit_codes.UNSEEN, [reason])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_page_that_may_not_be_read(tmp_path):
    _one_page(tmp_path / "pages", b"")
    (tmp_path / "pages" / f"x{layout.SUFFIX}").chmod(0)
    assert _reasons("--from", tmp_path / "pages") == (exit_codes.UNSEEN, [reasons.UNREADABLE])


def test_a_dangling_link_does_not_stop_it(tmp_path):
    _dangling_link(tmp_path / "pages")
    run = stallscope("diagnose", "--from", tmp_path / "pages")
    assert run.code == exit_codes.UNSEEN
    assert run.seconds < LIMIT_SECONDS


def test_the_folder_comes_from_the_environment(tmp_path):
    run = stallscope("diagnose", STALLSCOPE_DIR=str(tmp_path))
    assert (run.code, str(tmp_path) in run.out) == (exit_codes.UNSEEN, True)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(None, reasons.TIMEOUT), (b"HTTP/1.1 400 Bad Request\r\n\r\n", reasons.NOT_VALKEY)],
    ids=["accepts and never answers", "speaks something else"],
)
def test_a_server_that_is_no_valkey(answer, reason):
    with _server(answer) as url:
        run = stallscope("diagnose", "--valkey", url)
        assert run.code == exit_codes.UNSEEN
        assert run.seconds < LIMIT_SECONDS
        assert url in run.line()
        assert _reasons("--valkey", url) == (exit_codes.UNSEEN, [reason])


def test_a_dead_valkey_is_refused():
    url = f"redis://user:secret@127.0.0.1:{_closed_port()}"
    run = stallscope("diagnose", "--valkey", url)
    assert run.code == exit_codes.UNSEEN
    assert run.seconds < LIMIT_SECONDS
    assert "secret" not in run.line()
    assert _reasons("--valkey", url)[1] == [reasons.CONNECTION_REFUSED]


def test_an_unknown_host():
    run = stallscope("diagnose", "--valkey", "redis://no-such-host.invalid:6379")
    assert run.code == exit_codes.UNSEEN
    assert run.seconds < LIMIT_SECONDS
    assert "no-such-host.invalid" in run.line()


def test_eight_silent_shards_still_answer_in_time():
    with _server(None) as url:
        host, _, port = url.rpartition(":")
        urls = [f"{host.replace('127.0.0.1', f'127.0.0.{i}')}:{port}" for i in range(1, 9)]
        run = stallscope("diagnose", *[part for u in urls for part in ("--valkey", u)])
    assert run.code == exit_codes.UNSEEN
    assert run.seconds < LIMIT_SECONDS


# Usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "STALLSCOPE_DIR"),
        (["--from", ""], "STALLSCOPE_DIR"),
        (["--from", "http://prometheus:9090"], "prometheus:9090"),
        (["--from", "redis://v:6379"], "--valkey"),
        (["--from", "ftp://x/y"], "nothing that stallscope reads"),
        (["--from", "/dev/null"], "nothing that stallscope reads"),
        (["--valkey", ""], "redis://HOST:6379"),
        (["--valkey", "redis://valkey-{rank}:6379"], "is a template"),
        (["--valkey", "http://v:6379"], "redis://HOST:6379"),
        (["--valkey", "redis://"], "names no host"),
        (["--valkey", "redis://v:99999"], "not a URL"),
        (["--valkey", "redis://v:x"], "not a URL"),
        (["--valkey", "redis://u:secret@v:x"], "not a URL"),
        (["--valkey", "redis://[::1"], "not a URL"),
    ],
)
def test_usage(arguments, says):
    run = stallscope("diagnose", *arguments)
    assert run.code == exit_codes.USAGE
    assert run.seconds < LIMIT_SECONDS
    assert says in run.line()
    assert "secret" not in run.line()


@pytest.mark.parametrize(
    ("name", "head", "says"),
    [
        ("bundle.tar.gz", b"\x1f\x8b\x08\x00", "no whole bundle"),
        ("trace.json", b'{"traceEvents": []}', "a profile"),
        ("report.sqlite", b"SQLite format 3\x00", "a profile"),
        ("a.page", layout.MAGIC, "is one page; give its folder"),
        ("a.txt", b"hello", "nothing that stallscope reads"),
    ],
)
def test_a_file_is_recognised_by_its_content(name, head, says, tmp_path):
    (tmp_path / name).write_bytes(head)
    run = stallscope("diagnose", "--from", tmp_path / name)
    assert run.code == exit_codes.USAGE
    assert says in run.line()


# Findings ------------------------------------------------------------------------------------


def test_a_healthy_engine_is_silent(tmp_path):
    workers = lockstep(4)
    add_stores(workers, only_rank=None)
    with pages(tmp_path, workers):
        run = stallscope("diagnose", "--from", tmp_path)
        assert run.code == exit_codes.OK, run.out
        seen = json.loads(stallscope("diagnose", "--json", "--from", tmp_path).out)["seen"]
        # Without a scheduler's page and a shard, these have nothing to look at.
        blind = {"progress-stall", "shard-saturated"}
        assert {rule.name for rule in ALL_RULES} - set(seen["rules"]) <= blind
        assert run.line().startswith(f"nothing found  4 ranks; {len(seen['rules'])} rules")
        data = json.loads(stallscope("diagnose", "--from", tmp_path, "--json").out)
    assert (data["findings"], data["unseen"]) == ([], [])


def test_a_late_rank_is_named_with_its_next_command(tmp_path):
    workers = lockstep(4, late_rank=2)
    add_stores(workers, only_rank=None)
    with pages(tmp_path, workers):
        run = stallscope("diagnose", "--from", tmp_path)
    assert run.code == exit_codes.CRITICAL, run.out
    first = run.out.splitlines()[0]
    assert "straggler-rank, rank 2  since " in first
    assert f"  next     py-spy dump --pid {os.getpid()}" in run.out.splitlines()
    assert "  runbook  stallscope runbook straggler-rank" in run.out.splitlines()
    assert max(map(len, run.out.splitlines())) <= 80


def test_a_rank_that_stores_for_all_is_named(tmp_path):
    workers = lockstep(4, late_rank=0)
    add_stores(workers, only_rank=0)
    with pages(tmp_path, workers):
        run = stallscope("diagnose", "--from", tmp_path, "--json")
    findings = {finding["id"]: finding for finding in json.loads(run.out)["findings"]}
    assert findings["store-skew"]["rank"] == 0
    assert f"/proc/{os.getpid()}/environ" in findings["store-skew"]["next"]


@pytest.mark.parametrize("is_dead", [False, True], ids=["frozen", "dead"])
def test_a_silent_rank_is_named_frozen_or_dead(is_dead, tmp_path):
    workers = lockstep(4)
    add_stores(workers, only_rank=None)
    workers[1].heartbeat_age_seconds = 30.0
    with pages(tmp_path, workers, dead_ranks=[1] if is_dead else []):
        run = stallscope("diagnose", "--from", tmp_path)
    assert run.code == exit_codes.CRITICAL
    assert "rank-silent, rank 1" in run.out.splitlines()[0]
    assert ("dead" if is_dead else "frozen") in run.out


def test_a_rank_without_a_page_is_unseen(tmp_path):
    workers = lockstep(4)
    add_stores(workers, only_rank=None)
    with pages(tmp_path, workers[:3]):
        run = stallscope("diagnose", "--from", tmp_path)
    assert run.code == exit_codes.UNSEEN, run.out
    assert "rank 3" in run.out


def test_findings_stand_beside_what_was_unseen(tmp_path):
    workers = lockstep(4, late_rank=2)
    add_stores(workers, only_rank=None)
    url = f"redis://127.0.0.1:{_closed_port()}"
    with pages(tmp_path, workers):
        (tmp_path / f"foreign{layout.SUFFIX}").write_bytes(b"not a page at all")
        run = stallscope("diagnose", "--from", tmp_path, "--valkey", url)
    assert run.code == exit_codes.CRITICAL
    # A rank is suspicious, so that more pictures are taken, a second apart.
    assert run.seconds < LIMIT_SECONDS + (MOST_PICTURES - 1) * PICTURE_INTERVAL_SECONDS
    assert [line for line in run.out.splitlines() if "foreign" in line]
    assert [line for line in run.out.splitlines() if url in line]


SCHEMA = {
    "id": str,
    "severity": str,
    "rank": (int, type(None)),
    "shard": (str, type(None)),
    "since_seconds": float,
    "summary": str,
    "evidence": list,
    "confidence": float,
    "runbook": str,
    "next": str,
}


def test_the_json_keeps_its_schema(tmp_path):
    workers = lockstep(4, late_rank=2)
    with pages(tmp_path, workers):
        data = json.loads(stallscope("diagnose", "--from", tmp_path, "--json").out)
    assert data["schema"] == 1
    assert data["findings"]
    for finding in data["findings"]:
        for key, kind in SCHEMA.items():
            assert isinstance(finding[key], kind), key
        assert finding["evidence"]
        for evidence in finding["evidence"]:
            assert evidence.keys() == {"name", "value", "limit", "unit", "text"}
    for unseen in data["unseen"]:
        assert unseen.keys() == {"source", "reason", "detail", "mend"}
        assert unseen["reason"] in reasons.ALL


def test_a_closed_pipe_is_quiet(tmp_path):
    line = " ".join([*COMMAND, "diagnose", "--from", str(tmp_path), "|", "head", "-c", "1"])
    run = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(), check=False
    )
    assert (run.stdout, run.stderr) == ("u", "")
