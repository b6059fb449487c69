"""Build the CUDA overlay's thin launcher with nvcc and call it, as FlashInfer's runner would."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.kernels.problems import Buffers, Routing
from patched_engine.kernels.aot import CUDA_SOURCES, CompileUnavailable

Launch = Callable[..., None]


def build(target: Path, architecture: str = "90a", sources: Path = CUDA_SOURCES) -> Path:
    """Compile the launcher to the shared object ``target``. Raises CompileUnavailable, or
    CalledProcessError with nvcc's words on its error stream."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise CompileUnavailable("nvcc is not on the PATH: the overlay cannot be built here")
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [nvcc, "-std=c++17", "-O3", f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
         "-shared", "-Xcompiler", "-fPIC", "-lineinfo", "-I", str(sources),
         "-o", str(target), str(sources / "launcher.cu")],
        check=True,
    )  # fmt: skip
    return target


def load(path: Path) -> Launch:
    """The launch of the overlay in ``path``: (routing, buffers, intermediate, rows_estimate)."""
    entry = ctypes.CDLL(str(path)).stallscope_activation

    def launch(
        routing: Routing, buffers: Buffers, intermediate: int, rows_estimate: int | None = None
    ) -> None:
        def at(tensor: torch.Tensor | None) -> ctypes.c_void_p:
            return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())

        controls = [buffers.extra.get(name) for name in ("alpha", "beta", "limit")]
        estimate = routing.rows_estimate if rows_estimate is None else rows_estimate
        code = entry(
            at(buffers.x), at(buffers.xs), at(buffers.y), at(buffers.ys), at(routing.num_ctas),
            at(routing.mn_limit), at(routing.total_rows), at(routing.expert_of_tile),
            *[at(control) for control in controls], ctypes.c_int32(intermediate),
            ctypes.c_int32(routing.tile), ctypes.c_int64(estimate), ctypes.c_int32(0),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        if code:
            raise RuntimeError("the overlay left the call to the engine's own kernel")

    return launch
