"""Put our kernel in the place of vLLM's spec (B) function, behind a switch, and count what ran.

The replacement has vLLM's signature and layout. Whatever it cannot take goes to vLLM's own function
with a counted reason, logged once a reason; nothing here raises into the engine.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from patched_engine.locks import ForkSafeLock

logger = logging.getLogger(__name__)

SWITCH = "STALLSCOPE_ACTIVATION_KERNEL"
"""Environment variable: 1 puts our kernel in; anything else leaves vLLM as it is."""

FUNCTION = "silu_mul_per_token_group_quant_fp8_colmajor"
HOME = "vllm.model_executor.layers.quantization.utils.fp8_utils"
USERS = ("vllm.model_executor.layers.fused_moe.experts.deep_gemm_moe",)
"""Modules that hold their own reference to the function."""

SUPPORTED_SOURCES = {
    "6d4bba72bb07322fe41a9ed3b91afd1486c0bfbfe1fab84c880f1e9f726d0455": "0.32.0",
}
"""SHA-256 of the function's and its kernel's source -> the vLLM release that we compared with."""


@dataclass(frozen=True)
class Status:
    """What the replacement has done in this process so far."""

    applied: bool
    reason: str | None
    ours: int
    fallbacks: dict[str, int]


_lock = ForkSafeLock()
_fallbacks: Counter[str] = Counter()
_ours = 0
_original: Callable[..., Any] | None = None
_reason: str | None = "not asked for yet"


def status() -> Status:
    """Whether vLLM runs our kernel, why not, how often it ran, and the fallbacks by reason."""
    with _lock:
        return Status(_original is not None, _reason, _ours, dict(_fallbacks))


def apply() -> Status:
    """Replace vLLM's function if the switch says so and this is a release we know. Never raises.

    Every refusal is logged once and left in ``status().reason``.
    """
    global _reason
    try:
        reason = _apply()
    except Exception as error:  # the engine must start whatever happens here
        reason = f"failed: {type(error).__name__}: {error}"
    with _lock:
        _reason = reason
    if reason is None:
        logger.info("stallscope: vLLM's %s now runs our kernel", FUNCTION)
    elif reason != "switched off":
        logger.warning("stallscope: vLLM's %s is left as it is: %s", FUNCTION, reason)
    return status()


def restore() -> None:
    """Give vLLM its own function back, in every module that was changed."""
    global _original, _reason
    with _lock:
        original, _original = _original, None
        _reason = "restored"
    if original is None:
        return
    for name in (HOME, *USERS):
        module = sys.modules.get(name)
        if module is not None and getattr(module, FUNCTION, None) is _replacement:
            setattr(module, FUNCTION, original)


def source_digest(module: Any) -> str:
    """SHA-256 over the source of the function and of its Triton kernel, comments included."""
    kernel = getattr(module, f"_{FUNCTION}")
    text = inspect.getsource(getattr(kernel, "fn", kernel))
    text += inspect.getsource(getattr(module, FUNCTION))
    return hashlib.sha256(text.encode()).hexdigest()


def _apply() -> str | None:
    global _original
    if os.environ.get(SWITCH) != "1":
        return "switched off"
    if _original is not None:
        return None
    try:
        home = importlib.import_module(HOME)
    except ImportError as error:
        return f"{HOME} does not import: {error}"
    original = getattr(home, FUNCTION, None)
    if original is None:
        return f"{HOME} has no {FUNCTION}: this vLLM is not one that we know"
    digest = source_digest(home)
    if digest not in SUPPORTED_SOURCES:
        return f"its source (sha256 {digest[:12]}) is of no vLLM release that we compared with"
    # Triton and the op are imported now, so that a broken install shows at start.
    importlib.import_module("patched_engine.kernels.triton_vllm")
    importlib.import_module("patched_engine.kernels.vllm_ops")
    with _lock:
        _original = original
    for name in (HOME, *USERS):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue  # that user is absent here, so it cannot hold the old function
        if getattr(module, FUNCTION, None) is original:
            setattr(module, FUNCTION, _replacement)
    return None


def _count_fallback(reason: str) -> None:
    with _lock:
        first = reason not in _fallbacks
        _fallbacks[reason] += 1
    if first:
        logger.warning("stallscope: activation falls back to vLLM's own kernel (%s)", reason)


def _replacement(
    input: Any,  # the name is vLLM's: callers pass it by keyword
    output: Any = None,
    use_ue8m0: bool | None = None,
    eps: float = 1e-10,
    clamp_limit: float | None = None,
    group_size: int = 128,
    alpha: float = 1.0,
    beta: float = 0.0,
    *,
    expert_ends: Any = None,
    expert_alignment: int = 0,
) -> Any:
    """vLLM's signature; our kernel where it can, vLLM's own function where it cannot."""
    global _ours
    try:
        from patched_engine.kernels import vllm_ops

        reason = vllm_ops.unsupported_reason(
            input, output, group_size, expert_ends, expert_alignment
        )
        if reason is None:
            if use_ue8m0 is None:
                use_ue8m0 = bool(sys.modules[HOME].is_deep_gemm_e8m0_used())
            result = vllm_ops.launch(
                input, output, use_ue8m0, eps, clamp_limit, alpha, beta, expert_ends,
                expert_alignment,
            )  # fmt: skip
            with _lock:
                _ours += 1
            return result
    except Exception as error:  # vLLM's own function is the answer to any failure of ours
        reason = f"failed_{type(error).__name__}"
    _count_fallback(reason)
    original = _original
    if original is None:  # restored while a caller still held the replacement
        original = getattr(importlib.import_module(HOME), FUNCTION)
    return original(
        input, output, use_ue8m0, eps, clamp_limit, group_size, alpha, beta,
        expert_ends=expert_ends, expert_alignment=expert_alignment,
    )  # fmt: skip
