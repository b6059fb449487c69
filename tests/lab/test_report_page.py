"""The report: one file that needs nothing else, and says what the run's JSON says."""

from __future__ import annotations

import copy
import html.parser
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from lab import report_page
from lab.charts import Panel, Rows, nice_ticks
from lab.history import Moment, RankMoment, ShardMoment
from tests.lab.runs import run

ROW = {
    "id": "s0",
    "tokens": 4096,
    "arrival_seconds": 1.5,
    "ttft_seconds": 0.75,
    "source": {"l1": 0, "l2": 2048, "compute": 2048},
}
REPORT: dict[str, Any] = {
    "incident": "frozen-shard",
    "incident_seconds": 4.0,
    "engine": "stock",
    "ranks": 2,
    "shards": 1,
    "shard_urls": ["redis://127.0.0.1:7001"],
    "wall_seconds": 10.0,
    "bytes_equal": True,
    "stock_faults": {"lost_completions": 0, "lookup_timeouts": 3, "stalled_steps": 0},
    "stated": {
        "lmcache": "0.5.5",
        "async_loading": False,
        "prefill_rate": 13_250.0,
        "chunk_bytes": 131_072,
        "seed": 0,
    },
    "requests": {
        "count": 1,
        "unfinished": 1,
        "unfinished_arrival_seconds": [6.0],
        "ttft_seconds": {"p50": 0.75, "p99": 0.75},
        "source": {"l1_tokens": 0, "l2_tokens": 2048, "compute_tokens": 2048},
        "each": [ROW],
    },
    "findings": [
        {"id": "shard-down", "severity": "critical", "summary": 'shard <x> & "y" is down'},
    ],
    "per_rank": [
        {
            "rank": rank,
            "wait_seconds": 0.5,
            "charged_seconds": 0.5,
            "stamped_last_share": 0.5,
            "store_bytes": 3_000_000,
            "load_bytes": 1_000_000,
        }
        for rank in range(2)
    ],
}


def moments(count: int = 10) -> list[Moment]:
    return [
        Moment(
            float(at),
            (RankMoment(0.1 * at, 0.0, 3_000_000, 0, 1_000_000),) * 2,
            (ShardMoment(at < 5, 0.5 * at if at < 5 else None),),
            (("shard-down", "redis://127.0.0.1:7001", "critical"),) if at >= 7 else (),
        )
        for at in range(1, count + 1)
    ]


class Tags(html.parser.HTMLParser):
    """Every tag's attributes, and whether each that was opened was closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_needs_nothing_else_and_is_well_formed() -> None:
    page = report_page.render(REPORT, moments())
    tags = Tags(page)
    assert tags.open == []
    names = {name for name, _ in tags.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "onload"}
    assert "<script" not in page
    assert "@import" not in page and "url(" not in page
    assert "nan" not in re.findall(r'(?:points|x|y|cx|cy|width|height)="([^"]*)"', page)
    assert "shard &lt;x&gt; &amp; &quot;y&quot; is down" in page


def test_it_marks_the_onset_in_each_chart_over_time_and_draws_what_was_found() -> None:
    page = report_page.render(REPORT, moments())
    # Four charts over time; bytes are sums.
    assert page.count('class="onset"') == 4
    assert page.count("frozen-shard began") == 4
    assert "critical: shard-down, redis://127.0.0.1:7001, first named after 7.0 s" in page
    assert page.count("redis://127.0.0.1:7001 gave no answer") == 6
    assert 'class="dot s0"' in page and 'class="dot open"' in page
    for title in ("Time to first token", "Wait per rank", "Bytes per rank", "Shard satur", "Findi"):
        assert f"<h2>{title}" in page


def test_a_healthy_run_and_one_of_which_nothing_was_seen() -> None:
    healthy = copy.deepcopy(REPORT)
    healthy |= {"incident": None, "incident_seconds": None, "findings": []}
    healthy["requests"] |= {"each": [], "ttft_seconds": {"p50": None, "p99": None}}
    for seen in (moments(), moments(1), []):
        page = report_page.render(healthy, seen)
        assert 'class="onset"' not in page
        assert Tags(page).open == []


@pytest.mark.parametrize("most", [0.0, 0.003, 0.7, 1.0, 9.99, 10.0, 123.0, 86_400.0])
def test_ticks_are_few_round_and_reach_the_end(most: float) -> None:
    ticks = nice_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-9)
    assert 2 <= len(ticks) <= 13
    step = ticks[1] - ticks[0]
    assert step / 10 ** math.floor(math.log10(step)) == pytest.approx(
        round(step / 10 ** math.floor(math.log10(step)))
    )


def test_names_at_the_lines_ends_lie_apart_and_inside() -> None:
    panel = Panel(160, 10.0, 1.0, "", "x")
    for rank in range(8):
        panel.line([(0.0, 1.0), (10.0, 1.0)], f"s{rank}", f"rank {rank}")
    drawn = panel.svg(None, "")
    heights = [float(y) for y in re.findall(r'class="name s\d" x="[\d.]+" y="([\d.]+)"', drawn)]
    gaps = [b - a for a, b in itertools.pairwise(heights)]
    assert len(heights) == 8
    assert min(gaps) >= 12.9
    assert heights[0] > 10 and heights[-1] <= 160


def test_a_short_bar_has_its_name_beside_it() -> None:
    rows = Rows(100.0, "x", [("stuck-lookup · rank 0", 97.0, 98.0, "critical", "says")])
    assert 'text-anchor="end"' in rows.svg(None, "").split("stuck-lookup")[0][-40:]


def test_a_run_writes_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("lmcache")
    page = tmp_path / "run.html"
    result = run(tmp_path, "--ranks", "2", "--seconds", "5", "--report", str(page))
    text = page.read_text()
    assert (
        text.count('class="dot') == result["requests"]["count"] + result["requests"]["unfinished"]
    )
    assert json.dumps(result["stated"]["seed"]) in text
