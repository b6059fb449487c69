"""Files that are cut short, damaged, of another kind, or made to hurt: one line, bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import resource
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from detectors.late_in_profile import CLEAR
from exporters import reasons
from exporters.readers.profiles.load import load
from exporters.readers.profiles.summary import read
from exporters.snapshot import Unseen
from tests.exporters.profiles.simulated import simulate
from tests.exporters.profiles.write_kineto import write_kineto
from tests.exporters.profiles.write_nsys import write_nsys
from tests.runbooks.command_line import ROOT, environment


def kernel(start: float, name: str = "gemm", duration: float = 5.0, **args: object) -> dict:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": {"stream": 7, **args},
    }


def trace(events: list[dict], **header: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events, **header}).encode()


GOOD = trace([kernel(10.0 * i) for i in range(2000)])


class Evil:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("was_run",)


def half_gzip() -> bytes:
    packed = gzip.compress(GOOD)
    return packed[: len(packed) // 2]


def flipped_gzip() -> bytes:
    packed = bytearray(gzip.compress(os.urandom(4000) + GOOD))
    packed[len(packed) // 3] ^= 0xFF
    return bytes(packed)


REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "0 bytes": ("a.json", lambda: b"", "empty"),
    "an empty gzip": ("a.json.gz", lambda: gzip.compress(b""), "blanks"),
    "blanks": ("a.json", lambda: b" \n\n ", "blanks"),
    "half a gzip": ("a.json.gz", half_gzip, "cut short"),
    "a damaged gzip": ("a.json.gz", flipped_gzip, "damaged|no profile"),
    "a gzip of a picture": ("a.json.gz", lambda: gzip.compress(b"\x89PNG" * 99), "no profile"),
    "half a JSON": ("a.json", lambda: GOOD[: len(GOOD) // 2], "middle of an event"),
    "JSON without its end": ("a.json", lambda: GOOD[:-1], "ends after the events"),
    "JSON cut before its events": ("a.json", lambda: b'{"schemaVersion": 1, "tr', "before any"),
    "another JSON": ("a.json", lambda: b'{"a": 1}', "not a trace"),
    "a list of numbers": ("a.json", lambda: b"[1, 2, 3]", ""),
    "plain text": ("a.json", lambda: b"hello, world", "no profile"),
    "a picture": ("a.png", lambda: b"\x89PNG\r\n\x1a\n" + bytes(99), "no profile"),
    "zstd": ("a.zst", lambda: b"\x28\xb5\x2f\xfd" + bytes(99), "zstd"),
    "an nsys report": ("a.nsys-rep", lambda: bytes(99), "nsys export"),
    "a page": ("a.page", lambda: b"STSCPAGE" + bytes(99), "no profile|a page"),
    "a wicked pickle": ("a.pkl", lambda: pickle.dumps({"entries": Evil()}), "was not run"),
    "half a pickle": ("a.pkl", lambda: pickle.dumps({"entries": [1] * 99})[:-9], "middle|damaged"),
    "another pickle": ("a.pkl", lambda: pickle.dumps({"weights": [1]}), "no Flight Recorder"),
    "half a database": (
        "a.sqlite",
        lambda: b"SQLite format 3\x00" + bytes(50),
        "damaged|no Nsight",
    ),
    "deep JSON": ("a.json", lambda: b"[" * 200_000, ""),
    "inspector, cut": (
        "a.json",
        lambda: b'{"header": {"id": "0x1"}, "coll_perf": {"coll',
        "holds no",
    ),
}


def only(path: Path) -> Unseen:
    recording = load([path])
    assert recording.ranks == ()
    (unseen,) = recording.unseen
    assert unseen.reason in reasons.ALL
    assert "\n" not in unseen.detail + unseen.mend
    assert str(path) in unseen.detail
    return unseen


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_says_what_is_wrong_and_where(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content, said = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content())
    unseen = only(path)
    assert any(word in unseen.detail + unseen.mend for word in said.split("|")), unseen
    assert not (tmp_path / "was_run").exists()


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "No such file" in only(tmp_path / "none.json").detail
    assert "folder" in only(tmp_path).detail
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert "no regular file" in only(fifo).detail


def test_a_zip_and_another_database(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("rank0.json", GOOD)
    assert "zip" in only(tmp_path / "a.zip").detail
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute("CREATE TABLE users (name TEXT)")
    db.commit()
    db.close()
    assert "no Nsight Systems export" in only(tmp_path / "a.sqlite").detail


def test_a_newer_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    write_nsys(simulate(3), path)
    db = sqlite3.connect(path)
    db.execute("UPDATE META_DATA_EXPORT SET value = '4.0.1'")
    db.commit()
    db.close()
    unseen = only(path)
    assert (unseen.reason, "4.0.1" in unseen.detail) == ("unknown_schema", True)


def test_a_truncated_database(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    write_nsys(simulate(3), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged" in only(path).detail


# The process's own peak: ru_maxrss is the parent's where that is larger, for it outlives the exec.
PEAK_KILOBYTES = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"


def test_a_zip_bomb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    event = json.dumps(kernel(1.0)).encode() + b","
    with gzip.open(path, "wb", compresslevel=6) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(400):
            file.write(b" " * (1 << 20))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from exporters.readers.profiles.load import load\n"
        "print(load([Path(sys.argv[1])]).unseen[0].detail)\n"
        f"{PEAK_KILOBYTES}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said, kilobytes = done.stdout.splitlines()
    assert "an event of more than" in said or "unpacks to more than" in said
    assert int(kilobytes) < 300_000
    assert event


def test_negative_durations_and_odd_events_are_counted_out(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    events = [kernel(10.0 * i) for i in range(50)]
    events += [kernel(900.0, duration=-3.0), kernel(1e300), {"ph": "X", "cat": "kernel", "ts": 1.0}]
    path.write_bytes(trace(events))
    profile, unseen, _, _ = read([path], (), CLEAR)
    assert profile.kernels[0].calls == 50
    damaged = next(u for u in unseen if u.reason == "damaged")
    for said in ("1 with a negative duration", "1 with an impossible time", "1 without a time"):
        assert said in damaged.detail


def test_negative_durations_in_a_database(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    write_nsys(simulate(3), path)
    db = sqlite3.connect(path)
    rows = db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 3")
    db.commit()
    db.close()
    profile, unseen, _, _ = read([path], (), CLEAR)
    assert any("1 with a negative duration" in u.detail for u in unseen)
    assert sum(k.calls for k in profile.kernels if k.kind != "copy") == rows - 1


def test_a_range_open_for_the_whole_run_makes_no_gpu_idle(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    work = [kernel(1000.0 + 10 * i, duration=9.0) for i in range(100)]
    whole = {"ph": "X", "cat": "user_annotation", "name": "run", "ts": 0.0, "dur": 9e6}
    path.write_bytes(trace([*work, whole]))
    profile, _, _, _ = read([path], (), CLEAR)
    assert profile.wall_seconds == pytest.approx(999e-6)
    assert profile.ranks[0].idle_share == pytest.approx(0.1, abs=0.01)


def test_odd_bytes_in_names(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    raw = trace([kernel(10.0 * i, name="g%%") for i in range(20)])
    path.write_bytes(raw.replace(b"g%%", b"g\xff\x00\x1b[31m\\ud800'<b>\x07", 5))
    profile, unseen, _, _ = read([path], (), CLEAR)
    assert sum(k.calls for k in profile.kernels) == 20
    for use in profile.kernels:
        use.name.encode()
    assert not [u for u in unseen if u.reason == "damaged"]


def test_odd_bytes_in_a_database(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    write_nsys(simulate(3), path)
    db = sqlite3.connect(path)
    db.execute("UPDATE StringIds SET value = CAST(x'67ff00' AS TEXT) WHERE value LIKE 'gemm_0'")
    db.commit()
    db.close()
    profile, _, _, _ = read([path], (), CLEAR)
    for use in profile.kernels:
        use.name.encode()


def test_events_with_nested_events_and_fields_of_other_types(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    events = [
        kernel(10.0 * i, nested=[{"x": 1}, {"ph": "X"}], grid=[4, 1, 1] if i % 2 else "4,1,1")
        for i in range(40_000)
    ]
    path.write_bytes(trace(events))
    assert path.stat().st_size > 5 << 20
    profile, unseen, _, _ = read([path], (), CLEAR)
    usable = profile.kernels[0].calls
    left_out = sum(sum(f.left_out.values()) for f in load([path]).files)
    assert (usable, left_out) == (len(events), 0)
    assert unseen[0].reason == "no_collectives"


def test_a_bare_array_of_events(tmp_path: Path) -> None:
    path = tmp_path / "rank2.json"
    path.write_bytes(json.dumps([kernel(10.0 * i) for i in range(20)]).encode())
    profile, _, _, _ = read([path], (), CLEAR)
    assert [(r.rank, profile.kernels[0].calls) for r in profile.ranks] == [(2, 20)]


def test_ranks_with_different_counts_and_no_numbers_abstain_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    run = simulate(8, size=2)
    lost = [row for row in run.rows[1] if row.kind == "collective"][20]
    run.rows[1].remove(lost)  # in the middle: no shift makes the rest fit
    write_nsys(run, path)
    profile, unseen, _, _ = read([path], (), CLEAR)
    assert all(r.wait_seconds is None for r in profile.ranks)
    assert profile.late is None
    assert any("counts differ: rank 0 has 48, rank 1 has 47" in u.detail for u in unseen)


def test_a_record_that_begins_later_on_one_rank_is_aligned_by_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    run = simulate(8, size=2)
    early = [row for row in run.rows[1] if row.kind == "collective"][:3]
    run.rows[1] = [row for row in run.rows[1] if row not in early]
    write_nsys(run, path)
    profile, _, _, _ = read([path], (), CLEAR)
    assert [(g.joined, g.unjoined) for g in profile.groups] == [(45, 3)]


def test_half_a_group_abstains(tmp_path: Path) -> None:
    seed = next(s for s in range(99) if len(simulate(s, size=4).groups) == 1)
    run = simulate(seed, size=4)
    files, _ = write_kineto(run, tmp_path)
    profile, unseen, _, _ = read(files[:2], (), CLEAR)
    assert all(r.wait_seconds is None for r in profile.ranks)
    assert any("2 of its" in u.detail for u in unseen)
    profile, unseen, _, _ = read(files[:1], (), CLEAR)
    assert any("1 of its" in u.detail or "one rank only" in u.detail for u in unseen)


def test_a_rank_that_nobody_states_is_told_as_a_guess(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in files:
        path.write_bytes(GOOD)
    profile, unseen, _, _ = read(files, (), CLEAR)
    assert [r.rank for r in profile.ranks] == [0, 1]
    assert sum("by its place" in u.detail for u in unseen) == 2
    profile, unseen, _, _ = read(files, (3, 2), CLEAR)
    assert [r.rank for r in profile.ranks] == [2, 3]
    assert not any("by its place" in u.detail for u in unseen)


def test_a_good_file_beside_a_bad_one(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(GOOD)
    (tmp_path / "rank1.json").write_bytes(GOOD[:5000])
    profile, unseen, _, _ = read(sorted(tmp_path.iterdir()), (), CLEAR)
    assert [r.rank for r in profile.ranks] == [0]
    assert any("rank1.json" in u.detail for u in unseen)


@pytest.mark.soak
def test_ten_million_events_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    calls = b",".join(
        json.dumps(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::add",
                "pid": 1,
                "tid": 1,
                "ts": 1.0 * i,
                "dur": 0.5,
                "args": {"External id": i},
            }
        ).encode()
        for i in range(70_000)
    )
    work = b",".join(json.dumps(kernel(9.0 * i, bytes=i)).encode() for i in range(30_000))
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        file.write(b",".join([calls, work]))
        for _ in range(99):
            file.write(b"," + calls + b"," + work)
        file.write(b"]}")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from exporters.readers.profiles.load import load\n"
        "print(load([Path(sys.argv[1])]).files[0].events)\n"
        f"{PEAK_KILOBYTES}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    events, kilobytes = map(int, done.stdout.split())
    print(f"{events:,} events, {kilobytes / 1024:.0f} MB")
    assert events == 10_000_000
    assert kilobytes < 900_000
    assert resource.RUSAGE_SELF == 0
