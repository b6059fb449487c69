"""`stallscope trace` as a person and a script meet it: text, JSON, files written, exit codes."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from runbooks.cli import exit_codes
from tests.exporters.profiles.simulated import Run, simulate
from tests.exporters.profiles.write_kineto import write_kineto
from tests.exporters.profiles.write_nsys import write_nsys
from tests.runbooks.command_line import stallscope


def whole(seed: int, late: bool, size: int | None = None) -> Run:
    """The first run from `seed` on of one group, with a rank late at every step, or none."""
    for s in range(seed, seed + 400):
        run = simulate(s, size)
        if (run.late is not None) != late or len(run.groups) > 1 or run.has_rooted:
            continue
        if not late or min(w for r, w in enumerate(run.wait_ns) if r != run.late) > 20_000_000:
            return run
    raise AssertionError("no such seed")


def nsys(run: Run, path: Path) -> Path:
    """Written from the first seed on whose file lacks nothing."""
    while write_nsys(run, path):
        path.unlink()
        run.seed += 1
    return path


@pytest.fixture(scope="module")
def late_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    run = whole(0, True, 4)
    return run, nsys(run, tmp_path_factory.mktemp("late") / "report.sqlite")


@pytest.fixture(scope="module")
def even_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nsys(whole(0, False, 4), tmp_path_factory.mktemp("even") / "report.sqlite")


def test_a_late_rank_is_named_with_what_it_did(late_file: tuple[Run, Path]) -> None:
    run, path = late_file
    out = stallscope("trace", path)
    assert out.code == exit_codes.CRITICAL
    assert out.err == ""
    assert f"straggler-rank, rank {run.late}" in out.out
    assert f"late rank  rank {run.late}" in out.out
    assert "LMCacheEngine.store" in out.out
    assert re.search(r"^rank +wait ms +by duration +by skew", out.out, re.MULTILINE)
    told = [line for line in out.out.splitlines() if not line.startswith("unseen")]
    assert max(map(len, told)) <= 110


def test_json_has_the_same_answers_and_no_nan(late_file: tuple[Run, Path]) -> None:
    run, path = late_file
    out = stallscope("trace", path, "--json")
    assert out.code == exit_codes.CRITICAL
    assert "NaN" not in out.out
    assert "Infinity" not in out.out
    report = json.loads(out.out)
    assert report["schema"] == 1
    assert report["late"]["rank"] == run.late
    assert report["findings"][0]["id"] == "straggler-rank"
    assert report["findings"][0]["runbook"] == "straggler-rank"
    for rank in report["ranks"]:
        truth = run.wait_ns[rank["rank"]] / 1e9
        assert rank["wait_seconds"] == pytest.approx(truth, rel=0.05, abs=1e-3)


def test_an_even_run_is_quiet(even_file: Path) -> None:
    report = json.loads(stallscope("trace", even_file, "--json").out)
    assert [f["id"] for f in report["findings"] if f["id"] == "straggler-rank"] == []
    assert not (report["late"] or {}).get("is_clear")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give FILE"),
        (("a.json", "--compare", "a", "b"), "not several"),
        (("a.json", "--rank", "0", "--rank", "1"), "one for each FILE"),
        (("a.json", "b.json", "--rank", "1", "--rank", "1"), "different number"),
        (("--capture", "ftp://x"), "no http URL"),
        (("--capture", "http://x", "--seconds", "0"), "between 0 and 600"),
        (("--compare", "a", "b", "--html", "x"), "goes with FILE"),
        (("a.json", "a.json"), "given twice"),
    ],
)
def test_usage(arguments: tuple[str, ...], said: str) -> None:
    out = stallscope("trace", *arguments)
    assert out.code == exit_codes.USAGE
    assert said in out.line()


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_nothing_to_answer_is_one_line_and_no_table(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"")
    out = stallscope("trace", path, *option)
    assert out.code == exit_codes.UNSEEN
    assert "empty (0 bytes)" in out.line()


def test_two_files_that_claim_one_rank_ask_for_it(tmp_path: Path) -> None:
    run = whole(0, False, 2)
    files, _ = write_kineto(run, tmp_path)
    first = files[0]
    second = first.with_name("x" + first.name)
    shutil.copy(first, second)
    out = stallscope("trace", first, second)
    assert out.code == exit_codes.USAGE
    assert "--rank" in out.line()


def test_a_folder_stands_for_the_profiles_in_it(tmp_path: Path) -> None:
    run = whole(0, True, 2)
    write_kineto(run, tmp_path)
    (tmp_path / "notes.txt").write_text("not a profile")
    report = json.loads(stallscope("trace", tmp_path, "--json").out)
    assert [f["ranks"] for f in report["files"]] == [[0], [1]]
    assert report["late"]["rank"] == run.late


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "srcset")]


def test_the_page_stands_alone(tmp_path: Path, late_file: tuple[Run, Path]) -> None:
    run, path = late_file
    target = tmp_path / "report.html"
    assert stallscope("trace", path, "--html", target).code == exit_codes.CRITICAL
    text = target.read_text()
    page = Page()
    page.feed(text)
    assert page.links == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 3
    assert f"rank {run.late}" in text
    assert len(text) < 2_000_000
    assert "url(" not in text
    assert list(tmp_path.iterdir()) == [target]


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    wicked = "<script>x</script>"
    events = [
        {"ph": "X", "cat": "kernel", "name": wicked, "ts": 1, "dur": 9, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": wicked, "ts": 0, "dur": 900, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "b", "ts": 800, "dur": 9, "args": {}},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    stallscope("trace", path, "--html", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "&lt;script&gt;x" in text, "the range over the gap"
    assert wicked not in text


def test_metrics_parse_and_agree(tmp_path: Path, late_file: tuple[Run, Path]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    run, path = late_file
    target = tmp_path / "stallscope.prom"
    stallscope("trace", path, "--prom", target)
    families = {f.name: f for f in text_string_to_metric_families(target.read_text())}
    assert all(f.type == "gauge" for f in families.values())
    charged = {
        s.labels["rank"]: s.value
        for s in families["stallscope_profile_collective_charged_seconds"].samples
    }
    assert max(charged, key=lambda r: charged[r]) == str(run.late)
    found = families["stallscope_profile_finding"].samples
    assert {"finding": "straggler-rank", "severity": "critical", "rank": str(run.late)} in [
        s.labels for s in found
    ]
    assert list(tmp_path.iterdir()) == [target]


def test_metrics_of_nothing_leave_no_old_figures(
    tmp_path: Path, late_file: tuple[Run, Path]
) -> None:
    target = tmp_path / "stallscope.prom"
    stallscope("trace", late_file[1], "--prom", target)
    empty = tmp_path / "empty.json"
    empty.write_bytes(b"")
    assert stallscope("trace", empty, "--prom", target).code == exit_codes.UNSEEN
    samples = [line for line in target.read_text().splitlines() if not line.startswith("#")]
    assert samples == ["stallscope_profile_unseen 1"]


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, late_file: tuple[Run, Path]
) -> None:
    out = stallscope("trace", late_file[1], "--html", tmp_path / "none" / "r.html")
    assert out.code == exit_codes.USAGE
    assert "cannot be written" in out.line()


def test_compare(late_file: tuple[Run, Path], even_file: Path) -> None:
    out = stallscope("trace", "--compare", late_file[1], even_file)
    assert "before" in out.out
    assert "lost to the late rank" in out.out
    report = json.loads(stallscope("trace", "--compare", late_file[1], even_file, "--json").out)
    lost = next(c for c in report["changes"] if c["figure"] == "lost to the late rank")
    assert lost["after"] < 0.5 * lost["before"]
    assert lost["ratio"] == pytest.approx(lost["after"] / lost["before"])
    assert report["before"]["late"]["rank"] == late_file[0].late


def test_compare_with_what_cannot_be_read(tmp_path: Path, even_file: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_bytes(b"")
    out = stallscope("trace", "--compare", even_file, empty)
    assert out.code == exit_codes.UNSEEN
    assert "empty (0 bytes)" in out.out
