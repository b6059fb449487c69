"""Small runs of every kernel of ours, for compute-sanitizer to watch: memcheck and racecheck."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = ("memcheck", "racecheck")
OUR_KERNELS = (
    "swiglu_requant_kernel",
    "silu_mul_quant_kernel",
    "silu_mul_quant_once_kernel",
    "activation_kernel",
)


def watch(overlay_path: str) -> dict[str, str]:
    """Each tool's closing line, or why it did not run."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return dict.fromkeys(TOOLS, "not run: compute-sanitizer is not installed")
    found = {}
    for name in TOOLS:
        filters = [part for kernel in OUR_KERNELS for part in ("--kernel-regex", f"kns={kernel}")]
        ran = subprocess.run(
            [tool, "--tool", name, "--error-exitcode", "9", *filters, sys.executable, "-m",
             "benchmarks.kernels.sanitize", overlay_path],
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        lines = [line for line in ran.stdout.splitlines() if line.startswith("=====")]
        closing = lines[-1].strip("= ") if lines else (ran.stderr or "no output").strip()[-160:]
        done = "LAUNCHED" in ran.stdout
        found[name] = closing if done else f"not run: {closing}"
    return found


def _launch_all(overlay_path: str) -> None:
    import torch

    from benchmarks.kernels import contenders, overlay_launcher
    from benchmarks.kernels.correctness import controls_for
    from benchmarks.kernels.problems import make_buffers, make_counts, make_routing
    from patched_engine.kernels.vllm_ops import silu_mul_quant_colmajor

    generator = torch.Generator(device="cuda").manual_seed(1)
    overlay = overlay_launcher.load(Path(overlay_path)) if overlay_path else None
    launched = 0
    for tile, size, kind in ((8, 384, "uniform"), (64, 2048, "skewed"), (128, 128, "remote")):
        routing = make_routing(64, make_counts(64, kind, tile), tile, tile)
        for dtype in (torch.float8_e4m3fn, torch.bfloat16):
            for controls in (False, True):
                buffers = make_buffers(routing, size, dtype, generator)
                if controls:
                    buffers.extra = controls_for(generator)
                contenders.triton_op(routing, buffers, size)
                launched += 1
                if overlay is not None and dtype == torch.float8_e4m3fn:
                    overlay(routing, buffers, size)
                    launched += 1
    x = torch.randn((256, 768), device="cuda").to(torch.bfloat16)
    ends = torch.tensor([5, 5, 140], dtype=torch.int32, device="cuda")
    silu_mul_quant_colmajor(x, use_ue8m0=False)
    silu_mul_quant_colmajor(x, use_ue8m0=True, expert_ends=ends, expert_alignment=8)
    torch.cuda.synchronize()
    print(f"LAUNCHED {launched + 2}")


if __name__ == "__main__":
    _launch_all(sys.argv[1])
