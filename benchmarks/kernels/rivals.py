"""Find the rivals that were built or unpacked for this run; none of them is ours to ship.

`STALLSCOPE_RIVALS` names a folder (default .rivals) that may hold:
  flashinfer_main.so, flashinfer_3969.so  a C face over each one's own activation::run:
      int rival_activation(void* in, float* in_scales, void* out, float* out_scales,
          const int* num_tiles, const int* row_limit, const int* padded_rows, int* slot_to_row,
          int intermediate, int tokens, int top_k, int tile, void* stream)
  vllm_fp8_utils.py                       vLLM's own module, from its wheel
What is missing is reported as not run.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.problems import TOP_K, Buffers, Routing

VLLM_NAMES = (
    "_silu_mul_per_token_group_quant_fp8_colmajor",
    "silu_mul_per_token_group_quant_fp8_colmajor",
)


def folder() -> Path:
    return Path(os.environ.get("STALLSCOPE_RIVALS", ".rivals")).resolve()


def flashinfer(name: str) -> Callable[[Routing, Buffers, int], None] | None:
    """The launch of ``flashinfer_main`` or ``flashinfer_3969``, or None where it was not built."""
    path = folder() / f"{name}.so"
    if not path.exists():
        return None
    entry = ctypes.CDLL(str(path)).rival_activation

    def launch(routing: Routing, buffers: Buffers, intermediate: int) -> None:
        assert buffers.xs is not None
        pointers = [
            buffers.x, buffers.xs, buffers.y, buffers.ys, routing.num_ctas, routing.mn_limit,
            routing.total_rows, routing.row_of_slot,
        ]  # fmt: skip
        code = entry(
            *[ctypes.c_void_p(tensor.data_ptr()) for tensor in pointers],
            ctypes.c_int(intermediate), ctypes.c_int(routing.tokens), ctypes.c_int(TOP_K),
            ctypes.c_int(routing.tile),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        if code:
            raise RuntimeError(f"{name} refused the launch")

    return launch


def vllm_function() -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    """vLLM's own function of spec (B), taken out of its module as it stands, or None.

    Only its two definitions are executed; the platform questions it asks are answered for CUDA.
    """
    path = folder() / "vllm_fp8_utils.py"
    if not path.exists():
        return None
    source = path.read_text()
    taken = [
        ast.get_source_segment(source, node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in VLLM_NAMES
    ]
    if len(taken) != len(VLLM_NAMES):
        raise RuntimeError(f"{path} does not define {' and '.join(VLLM_NAMES)}")
    module_path = path.with_name("vllm_extract.py")
    # triton.jit reads its source from a file; the segments lack their decorator.
    module_path.write_text(
        "import torch\nimport triton\nimport triton.language as tl\n"
        "from types import SimpleNamespace\n"
        "current_platform = SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn, "
        "is_fp8_fnuz=lambda: False)\n"
        "def is_deep_gemm_e8m0_used():\n    return False\n\n"
        f"@triton.jit\n{taken[0]}\n\n{taken[1]}\n"
    )
    return getattr(_load(module_path), VLLM_NAMES[1])  # type: ignore[no-any-return]


def _load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module  # type: ignore[no-any-return]
