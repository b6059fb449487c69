"""A scheduler's page as series: counters, the histogram added up, and absent where nobody wrote."""

from __future__ import annotations

from exporters import catalog
from exporters import page_layout as layout
from exporters.evaluator import Evaluator
from exporters.metrics import samples
from tests.exporters.page_files import PageFile, locked, worker_info

SCHEDULER = {"engine_id": "engine-a", "roles": ["scheduler"], "world_size": 1}


def found(folder, *pages):
    with locked(*(page.path for page in pages)):
        evaluator = Evaluator(folder, (), ())
        listed = list(samples(evaluator.tick(), folder))
        evaluator.close()
    return {(s.metric.name + s.suffix, s.labels, s.bound): s.value for s in listed}


def test_the_buckets_add_up(tmp_path):
    page = PageFile(tmp_path / "s.page", SCHEDULER)
    page.count("ttft_1_bucket_0", 5)
    page.count("ttft_1_bucket_8", 2, lane=3)
    page.count("ttft_1_bucket_12", 1)
    page.count("ttft_1_nanoseconds", 7_500_000_000)
    page.count("requests_hit_external", 3)
    page.count("requests_admitted", 9)
    series = found(tmp_path, page)
    of_band = ("engine-a", "32768")
    name = catalog.TTFT.name
    by_bound = {
        b: v for (n, labels, b), v in series.items() if (n, labels) == (f"{name}_bucket", of_band)
    }
    assert list(by_bound) == [*map(str, layout.TTFT_BOUNDS_SECONDS), "+Inf"]
    assert [by_bound[b] for b in ("0.1", "20.0", "30.0", "70.0", "120.0", "+Inf")] == [
        5,
        5,
        7,
        7,
        7,
        8,
    ]
    assert series[f"{name}_count", of_band, ""] == 8
    assert series[f"{name}_sum", of_band, ""] == 7.5
    assert series[catalog.REQUEST_HITS.name, ("engine-a", "external"), ""] == 3
    assert series["stallscope_requests_admitted_total", ("engine-a",), ""] == 9


def test_the_gates_of_the_post_are_bounds():
    assert {30.0, 70.0} <= set(layout.TTFT_BOUNDS_SECONDS)
    assert layout.TTFT_BAND_COUNT <= 4


def test_a_worker_has_no_requests_and_a_page_without_an_engine_no_l1(tmp_path):
    page = PageFile(tmp_path / "0.page", worker_info(0, 1))
    names = {name for name, _, _ in found(tmp_path, page)}
    assert not {m.name for m in catalog.REQUEST_COUNTERS.values()} & names
    assert not {f"{catalog.TTFT.name}_count", catalog.L1_USED.name} & names
    page.mark("l1_read", 1)
    assert found(tmp_path, page)[catalog.L1_USED.name, ("engine-a", "0"), ""] == 0
