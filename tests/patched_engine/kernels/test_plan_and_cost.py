"""The grid forgives a wrong estimate, and the cost model says what the post's figures say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from patched_engine.kernels.cost_model import activation_cost
from patched_engine.kernels.plan import (
    MAX_CTAS_PER_SM,
    estimate_local_rows,
    plan_launch,
    plan_shape,
)
from patched_engine.kernels.spec import KernelInputError, bytes_per_valid_row

SMS = 132


def test_importing_the_package_pulls_in_neither_torch_nor_triton() -> None:
    code = (
        "import sys, patched_engine.kernels as k; k.activation_cost; k.plan_launch;"
        "sys.exit(bool({'torch', 'triton', 'vllm', 'flashinfer'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    from patched_engine import kernels

    with pytest.raises(AttributeError, match="no attribute 'swish'"):
        kernels.swish
    assert "swiglu_requant" in dir(kernels)


def test_estimate_is_the_even_share() -> None:
    assert estimate_local_rows(8192, 8, 32, 256) == 8192
    assert estimate_local_rows(1, 8, 32, 256) == 1
    with pytest.raises(ValueError, match="local_experts 9"):
        estimate_local_rows(1, 8, 9, 8)


@pytest.mark.parametrize("rows", [1024, 8192, 65536])
def test_an_estimate_8_times_off_moves_the_grid_by_less_than_3(rows: int) -> None:
    right = plan_launch(rows, 64, 2048, SMS, 10**7).grid
    assert right <= plan_launch(rows * 8, 64, 2048, SMS, 10**7).grid < 3 * right
    assert right / 3 < plan_launch(rows // 8, 64, 2048, SMS, 10**7).grid <= right


def test_the_grid_never_exceeds_the_buffers_nor_its_bound() -> None:
    assert plan_launch(10**6, 8, 128, SMS, 64).grid == 8
    assert plan_launch(10**8, 64, 2048, SMS, 10**9).grid <= SMS * MAX_CTAS_PER_SM
    assert plan_launch(0, 64, 2048, SMS, 0).grid >= 1


@pytest.mark.parametrize("tile", range(8, 129, 8))
def test_items_divide_every_tile(tile: int) -> None:
    for fp8_input, controls in ((True, False), (True, True), (False, True)):
        shape = plan_shape(tile, fp8_input, controls)
        assert tile % (shape.rows * shape.parts) == 0
        assert shape.rows * 128 == shape.warps * 32 * 16  # 16 elements a thread: a 16-byte load


def test_walkers_fill_the_card_and_the_rest_take_one_span_each() -> None:
    plan = plan_launch(8192, 64, 2048, SMS, 10**7)
    assert plan.shape.resident_per_sm == 16
    assert plan.walkers * plan.blocks == 16 * SMS < plan.grid
    small = plan_launch(1024, 64, 2048, SMS, 10**7)
    assert small.programs <= small.walkers


@pytest.mark.parametrize(("tile", "size"), [(4, 2048), (12, 2048), (136, 2048), (64, 100), (64, 0)])
def test_unsupported_shapes_are_refused_with_the_mend(tile: int, size: int) -> None:
    with pytest.raises(KernelInputError, match=r"must be .*: (pass|pad)"):
        plan_launch(8, tile, size, SMS, 64)


def test_bytes_per_row_by_hand() -> None:
    assert bytes_per_valid_row(2048) == 2 * 2048 + 2048 + 3 * 16 * 4 == 6336
    assert bytes_per_valid_row(2048, 2) == 4 * 2048 + 2048 + 16 * 4 == 10304


def test_cost_of_the_posts_batch() -> None:
    """16 x 8192 tokens, top 8, EP8: 7 of 8 slot CTAs are idle and 1572 us is 12% of 4.3 TB/s."""
    cost = activation_cost(
        tokens=16 * 8192, top_k=8, experts=256, local_experts=32, intermediate=2048,
        bandwidth_bytes_per_second=4.3e12,
    )  # fmt: skip
    assert cost.valid_rows == 131072
    assert cost.moved_bytes == 131072 * 6336
    assert cost.floor_seconds == pytest.approx(131072 * 6336 / 4.3e12)
    assert cost.idle_cta_share == 0.875
    assert cost.slot_grid_ctas == 16 * 8192 * 8 * 16
    assert cost.bandwidth_share(1572e-6) == pytest.approx(0.1229, abs=1e-3)
    assert cost.wasted_seconds(1572e-6) == pytest.approx(1572e-6 - cost.floor_seconds)
    assert cost.wasted_seconds(0.0) == 0.0


def test_idle_share_falls_when_a_cta_covers_several_tokens() -> None:
    shape = {"tokens": 64, "top_k": 8, "experts": 256, "local_experts": 32, "intermediate": 2048}
    cost = activation_cost(**shape, bandwidth_bytes_per_second=1e12, tokens_per_cta=4)
    assert cost.idle_cta_share == pytest.approx(0.875**4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"valid_rows": 513}, "valid_rows is 513"),
        ({"bandwidth_bytes_per_second": 0.0}, "bandwidth_bytes_per_second is 0.0"),
        ({"tokens_per_cta": 0}, "tokens_per_cta is 0"),
        ({"intermediate": 100}, "intermediate size is 100"),
    ],
)
def test_cost_refuses_what_cannot_be(change: dict[str, float], message: str) -> None:
    shape: dict[str, float] = {
        "tokens": 64, "top_k": 8, "experts": 256, "local_experts": 32, "intermediate": 2048,
        "bandwidth_bytes_per_second": 1e12,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        activation_cost(**(shape | change))  # type: ignore[arg-type]


def test_no_time_no_share() -> None:
    cost = activation_cost(
        tokens=8, top_k=8, experts=8, local_experts=8, intermediate=128,
        bandwidth_bytes_per_second=1e12,
    )  # fmt: skip
    with pytest.raises(ValueError, match="must be positive"):
        cost.bandwidth_share(0.0)
