"""Recordings and bundles: what was written is read again, and what is none is one line."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import tarfile

import pytest

from detectors import ALL_RULES
from exporters import bundle
from exporters.capture import AGAIN_SECONDS, MOST_KEPT, Capturer, CaptureSettings
from exporters.readers.bundle import BundleError, Recorded, read
from exporters.recording import HEAD, Recorder
from exporters.snapshot import Evaluation, Finding
from tests.detectors.fleet_pictures import picture, ranks, since
from tests.detectors.pictures import NOW

DEAD = picture(ranks(liveness="dead", heartbeat_age_seconds=9.0))


def evaluation(snapshot=DEAD, findings=None):
    if findings is None:
        return Recorded([Evaluation(snapshot, (), ())], ALL_RULES).look()
    return Evaluation(snapshot, findings, ())


def test_a_recording_is_read_again(tmp_path):
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path)
    for _ in range(3):
        recorder.add(evaluation())
    recorder.close()
    found = read(path)
    assert len(found) == 3
    assert [len(e.snapshot.earlier) for e in found] == [0, 1, 2]
    assert found[-1].findings == evaluation().findings
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_writer_that_was_killed_costs_its_last_line(tmp_path):
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path)
    recorder.add(evaluation())
    recorder.add(evaluation())
    recorder.close()
    path.write_bytes(path.read_bytes()[:-40])
    assert len(read(path)) == 1
    again = Recorder(path)  # and goes on: the torn line is then in the middle
    again.add(evaluation())
    again.close()
    assert path.read_text().count(HEAD) == 1
    assert len(read(path)) == 2


def test_a_full_file_makes_room(tmp_path):
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path, most_bytes=5000)
    for _ in range(20):
        recorder.add(evaluation())
    recorder.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.jsonl", "r.jsonl.1"]
    assert read(path) and read(tmp_path / "r.jsonl.1")


def test_a_disk_that_fails_is_said_and_not_raised(tmp_path):
    recorder = Recorder(tmp_path / "none" / "r.jsonl")
    recorder.add(evaluation())
    assert "No such file" in recorder.fault


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no whole bundle"),
        (b"hello", "bundle"),
        (f"{HEAD}\n".encode(), "holds no picture"),
        (f"{HEAD}\nnot json\n".encode(), "line 2 is not JSON"),
        (f'{HEAD}\n{{"schema": 1}}\n'.encode(), "line 2 is no snapshot"),
        (gzip.compress(b"no tar"), "bundle"),
        (gzip.compress(b"\0" * 20000)[:-9], "bundle"),
    ],
)
def test_what_is_none_is_one_line(tmp_path, content, says):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=says) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def tar_of(path, **members):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_foreign_and_a_later_bundle(tmp_path):
    path = tmp_path / "x.tar.gz"
    tar_of(path, readme__txt=b"hi")
    with pytest.raises(BundleError, match=r"has no manifest\.json"):
        read(path)
    tar_of(path, manifest__json=json.dumps({"stallscope_bundle": 99}).encode())
    with pytest.raises(BundleError, match="version 99; this reads 1"):
        read(path)
    tar_of(path, manifest__json=b"[")
    with pytest.raises(BundleError, match="not JSON"):
        read(path)


def test_links_and_paths_that_lead_out_write_nothing(tmp_path):
    path = tmp_path / "in" / "x.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("pages")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
        out = tarfile.TarInfo("../../evil")
        out.size = 4
        tar.addfile(out, io.BytesIO(b"evil"))
    with pytest.raises(BundleError):
        read(path)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["x.tar.gz"]


def test_a_bundle_gives_the_findings_that_were_published(tmp_path):
    path = tmp_path / "b.tar.gz"
    was = evaluation(since(DEAD, 2.0, lambda p: p))
    bundle.write(path, [was], None, "asked for")
    found = Recorded(read(path), ALL_RULES).look()
    assert [(f.id, f.rank) for f in found.findings] == [(f.id, f.rank) for f in was.findings]
    assert found.findings[0].id == "engine-dead"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["b.tar.gz"]


def test_an_onset_that_was_known_is_kept():
    old = dataclasses.replace(evaluation().findings[0], since_seconds=777.0)
    found = Recorded([evaluation(findings=(old,))], ALL_RULES).look()
    assert found.findings[0].since_seconds == 777.0


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


def capturer(folder, **settings):
    clock = Clock()
    return Capturer(CaptureSettings(folder, **settings), None, clock), clock


def critical(name):
    return evaluation(findings=(Finding(name, "critical", name),))


def test_the_first_critical_finding_is_captured_once_in_half_an_hour(tmp_path):
    made, clock = capturer(tmp_path)
    for _ in range(10):
        made.handle(evaluation(findings=(Finding("a", "warning", "a"),)))
        clock.now += 1
    assert list(tmp_path.iterdir()) == []
    for _ in range(10):
        made.handle(critical("a"))
        clock.now += 1
    [path] = tmp_path.iterdir()
    assert path.name.startswith("capture-") and path.name.endswith("-a.tar.gz")
    assert len(read(path)) == 4, "one in 5 s of what came before, and the one that is captured"
    clock.now += AGAIN_SECONDS
    made.handle(critical("a"))
    assert made.captures == 2


def test_the_newest_few_stay(tmp_path):
    made, clock = capturer(tmp_path)
    for number in range(MOST_KEPT + 3):
        made.handle(critical(f"f{number}"))
        clock.now += 10
    assert len(list(tmp_path.iterdir())) == MOST_KEPT
    assert not list(tmp_path.glob("*-f0.tar.gz"))
    assert made.captures == MOST_KEPT + 3


def test_a_folder_that_cannot_be_written_is_counted_and_logged_once(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    made, clock = capturer(blocked)
    for number in range(3):
        made.handle(critical(f"f{number}"))
        clock.now += 10
    assert (made.captures, made.faults) == (0, 3)


def test_a_slow_disk_never_holds_a_tick(tmp_path):
    made, _ = capturer(tmp_path)  # its thread does not run: nothing is taken out
    for _ in range(100):
        made.take(evaluation())
    assert made.faults == 100 - 8


def test_it_records_at_its_own_pace(tmp_path):
    made, clock = capturer(None, record=tmp_path / "r.jsonl", every_seconds=5.0)
    for _ in range(21):
        made.handle(evaluation())
        clock.now += 1
    assert len(read(tmp_path / "r.jsonl")) == 5
