"""The FP8 activation between a MoE layer's two expert GEMMs; torch and Triton load on first use.

Source: post, Bottleneck 2; FlashInfer PR #3969 is the upstream fix that this is measured beside.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that holds it. Nothing here imports torch or Triton by itself.
_HOMES = {
    "ActivationCost": "cost_model",
    "KernelInputError": "spec",
    "activation_cost": "cost_model",
    "plan_launch": "plan",
    "swiglu_requant": "ops",
    "swiglu_requant_into": "ops",
    "silu_mul_quant_colmajor": "vllm_ops",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
