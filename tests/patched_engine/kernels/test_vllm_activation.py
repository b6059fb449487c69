"""The replacement in vLLM: put in only where it is known, counted, and never raising."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from patched_engine.kernels import vllm_activation as patch  # noqa: E402
from patched_engine.kernels import vllm_ops  # noqa: E402

STOCK = f"""
def _{patch.FUNCTION}(x):
    return x


def {patch.FUNCTION}(input, *rest, **named):
    return "stock", input, rest, named


def is_deep_gemm_e8m0_used():
    return True
"""


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A vLLM that has only the function, and a user that imported it by name."""
    import importlib.util

    path = tmp_path / "fp8_utils.py"
    path.write_text(STOCK)
    spec = importlib.util.spec_from_file_location("stock_fp8_utils", path)
    assert spec is not None and spec.loader is not None
    home = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(home)
    user = types.ModuleType(patch.USERS[0])
    setattr(user, patch.FUNCTION, getattr(home, patch.FUNCTION))
    for name in (patch.HOME, patch.USERS[0]):
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            if parent not in sys.modules or depth == 1:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, patch.HOME, home)
    monkeypatch.setitem(sys.modules, patch.USERS[0], user)
    monkeypatch.setattr(patch, "SUPPORTED_SOURCES", {patch.source_digest(home): "0.32.0"})
    monkeypatch.setattr(patch, "_fallbacks", type(patch._fallbacks)())
    monkeypatch.setattr(patch, "_ours", 0)
    monkeypatch.setenv(patch.SWITCH, "1")
    # Spec (B)'s module imports Triton, which a machine without a card may lack.
    kernel = types.ModuleType("patched_engine.kernels.triton_vllm")
    monkeypatch.setitem(sys.modules, kernel.__name__, kernel)
    yield home
    patch.restore()


def _launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def launch(*arguments: Any) -> str:
        calls.append(arguments)
        return "ours"

    monkeypatch.setattr(vllm_ops, "launch", launch)
    monkeypatch.setattr(vllm_ops, "unsupported_reason", lambda *arguments: None)
    return calls


def test_off_by_default(stock: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(patch.SWITCH)
    original = getattr(stock, patch.FUNCTION)
    assert patch.apply() == patch.Status(False, "switched off", 0, {})
    assert getattr(stock, patch.FUNCTION) is original


def test_a_supported_call_runs_ours_and_is_counted(
    stock: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _launched(monkeypatch)
    assert patch.apply().applied
    for module in (stock, sys.modules[patch.USERS[0]]):
        function = getattr(module, patch.FUNCTION)
        assert function(input="x", output="y", clamp_limit=7.0) == "ours"
    # use_ue8m0 None asks vLLM, as vLLM's own function does.
    assert calls[0] == ("x", "y", True, 1e-10, 7.0, 1.0, 0.0, None, 0)
    assert patch.status() == patch.Status(True, None, 2, {})


def test_an_unsupported_call_falls_back_counted_and_logged_once(
    stock: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    patch.apply()
    function = getattr(stock, patch.FUNCTION)
    x = torch.zeros(128, 256)
    with caplog.at_level(logging.WARNING, logger=patch.__name__):
        for _ in range(3):
            kind, given, rest, named = function(x, group_size=64)
    assert (kind, given is x) == ("stock", True)
    assert rest == (None, None, 1e-10, None, 64, 1.0, 0.0)
    assert named == {"expert_ends": None, "expert_alignment": 0}
    assert patch.status().fallbacks == {"group_size": 3}
    assert [record.getMessage() for record in caplog.records] == [
        "stallscope: activation falls back to vLLM's own kernel (group_size)"
    ]


def test_a_failure_of_ours_never_reaches_the_engine(
    stock: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launched(monkeypatch)

    def explode(*arguments: Any) -> None:
        raise RuntimeError("no such card")

    monkeypatch.setattr(vllm_ops, "launch", explode)
    patch.apply()
    assert getattr(stock, patch.FUNCTION)("x")[0] == "stock"
    assert patch.status().fallbacks == {"failed_RuntimeError": 1}


def test_an_unknown_source_is_refused(
    stock: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patch, "SUPPORTED_SOURCES", {"0" * 64: "0.32.0"})
    original = getattr(stock, patch.FUNCTION)
    status = patch.apply()
    assert not status.applied
    assert "is of no vLLM release that we compared with" in str(status.reason)
    assert getattr(stock, patch.FUNCTION) is original


def test_a_missing_vllm_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(patch.SWITCH, "1")
    monkeypatch.setitem(sys.modules, patch.HOME, None)
    status = patch.apply()
    assert not status.applied
    assert "does not import" in str(status.reason)


def test_restore_gives_every_module_its_own_function_back(stock: types.ModuleType) -> None:
    original = getattr(stock, patch.FUNCTION)
    patch.apply()
    held = getattr(stock, patch.FUNCTION)
    assert held is not original
    patch.restore()
    assert getattr(stock, patch.FUNCTION) is original
    assert getattr(sys.modules[patch.USERS[0]], patch.FUNCTION) is original
    assert held("x")[0] == "stock"  # a caller that kept the replacement still gets an answer


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "reason"),
    [(128, 256, torch.bfloat16, "device"), (128, 256, torch.float32, "device")],
)
def test_reasons_on_the_cpu(rows: int, columns: int, dtype: torch.dtype, reason: str) -> None:
    x = torch.zeros((rows, columns), dtype=dtype)
    assert vllm_ops.unsupported_reason(x, None, 128, None, 0) == reason
