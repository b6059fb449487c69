"""Compile the kernels for a card that is not here, and read back what the compiler made of them.

Lets a machine without a GPU hold the properties that the speed rests on: 16-byte loads and stores,
the register count, no spills. Needs Triton (its wheel brings ptxas and cuobjdump), or nvcc for the
CUDA overlay.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patched_engine.kernels.plan import plan_shape

TRITON_ARCHITECTURES = (90, 100, 103)
CUDA_ARCHITECTURES = ("90a", "100a", "103a")
CUDA_SOURCES = Path(__file__).parent / "cuda"

_ALIGNED = [["tt.divisibility", 16]]


class CompileUnavailable(RuntimeError):
    """The compiler that was asked for is not installed here."""


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel: registers a thread, spilled and stack bytes, and the code itself.

    ``sass`` is empty where the disassembler at hand does not know the architecture; the widths are
    then those of the PTX, which ptxas never narrows.
    """

    name: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    ptx: str
    sass: str

    def _count(self, in_sass: str, in_ptx: str) -> int:
        return len(re.findall(in_sass, self.sass) if self.sass else re.findall(in_ptx, self.ptx))

    @property
    def wide_loads(self) -> int:
        """Global loads of 16 bytes."""
        return self._count(r"\bLDG\.[A-Z0-9_.]*\b128\b", r"\bld\.global\S*\.v4\.[bu]32\b")

    @property
    def wide_stores(self) -> int:
        """Global stores of 16 bytes."""
        return self._count(r"\bSTG\.[A-Z0-9_.]*\b128\b", r"\bst\.global\S*\.v4\.[bu]32\b")

    @property
    def narrow_accesses(self) -> int:
        """Global loads and stores of 1 or 2 bytes: none belongs in these kernels."""
        return self._count(
            r"\b(?:LDG|STG)\.[A-Z0-9_.]*\b[US](?:8|16)\b",
            r"\b(?:ld|st)\.global(?!\S*\.v[24]\.)\S*\.[bus](?:8|16)\b",
        )

    @property
    def local_accesses(self) -> int:
        """Loads from and stores to local memory: spills, or arrays indexed at run time."""
        return self._count(r"\b(?:LDL|STL)\b", r"\b(?:ld|st)\.local\b")


def compile_activation(
    architecture: int,
    *,
    intermediate: int = 2048,
    tile: int = 64,
    fp8_input: bool = True,
    controls: bool = False,
) -> Compiled:
    """Spec (A)'s Triton kernel for ``architecture`` (90, 100 or 103). Raises CompileUnavailable."""
    from patched_engine.kernels.triton_activation import swiglu_requant_kernel as kernel

    x_type = "*fp8e4nv" if fp8_input else "*bf16"
    types = [x_type, "*fp32", "*fp8e4nv", "*fp32", *["*i32"] * 4, *["*fp32"] * 3, "i32", "i32"]
    shape = plan_shape(tile, fp8_input, controls)
    constants = {
        "I": intermediate, "TILE": tile, "ROWS": shape.rows, "PARTS": shape.parts,
        "FP8_IN": fp8_input, "OVERLAP": True,
        "HAS_ALPHA": controls, "HAS_BETA": controls, "HAS_LIMIT": controls,
    }  # fmt: skip
    return _compile_triton(kernel, types, constants, architecture, shape.warps, shape.registers)


def compile_vllm(
    architecture: int,
    *,
    intermediate: int = 2048,
    alignment: int = 0,
    use_ue8m0: bool = False,
    has_clamp: bool = False,
    one_item: bool = False,
    warps: int = 4,
    rows: int = 8,
) -> Compiled:
    """Spec (B)'s Triton kernel for ``architecture`` (90, 100 or 103). Raises CompileUnavailable."""
    from patched_engine.kernels import triton_vllm

    types = ["*bf16", "*fp8e4nv", "*fp32", *["i32"] * (one_item or 2), *["fp32"] * 4]
    constants: dict[str, Any] = {
        "N2": intermediate, "ROWS": rows, "UE8M0": use_ue8m0, "HAS_CLAMP": has_clamp,
        "PLAIN_SCALE": True,
    }  # fmt: skip
    if not has_clamp:
        constants["clamp_limit"] = None
    if one_item:
        kernel = triton_vllm.silu_mul_quant_once_kernel
        constants["OVERLAP"] = True
    else:
        kernel = triton_vllm.silu_mul_quant_kernel
        types.insert(3, "*i32")
        constants |= {"ALIGNMENT": alignment, "LANES": 4 * warps}
        if not alignment:
            constants["ends_ptr"] = None
    return _compile_triton(kernel, types, constants, architecture, warps)


def _compile_triton(
    kernel: Any,
    types: list[str],
    constants: dict[str, Any],
    architecture: int,
    warps: int,
    register_cap: int | None = None,
) -> Compiled:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise CompileUnavailable(f"Triton does not import here ({error}): install triton") from None
    names = kernel.arg_names
    signature = dict(zip(names, types, strict=False))
    signature |= dict.fromkeys(constants, "constexpr")
    attributes = {(i,): _ALIGNED for i, kind in enumerate(types) if kind.startswith("*")}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    built = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": warps, "maxnreg": register_cap},
    )
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(built.asm["cubin"])
        tool = str(tools / "cuobjdump")
        usage = _run([tool, "--dump-resource-usage", str(cubin)])
        sass = _run([tool, "--dump-sass", str(cubin)])
    line = re.search(r"Function (\S+):\s*\n\s*(REG:.*)", usage)
    if line is None:
        raise RuntimeError(f"cuobjdump named no kernel: {usage[:200]!r}")
    numbers = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line[2])}
    return Compiled(
        line[1], numbers["REG"], numbers["LOCAL"], numbers["STACK"], built.asm["ptx"], sass
    )


def compile_overlay(architecture: str) -> list[Compiled]:
    """The CUDA overlay, through the declared shim, for "90a", "100a" or "103a": every variant.

    Raises CompileUnavailable without nvcc, RuntimeError with the compiler's words if it refuses the
    source.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise CompileUnavailable("nvcc is not on the PATH: install the CUDA 12.9 or 13 toolkit")
    common = [
        nvcc, "-std=c++17", "-O3", "-Werror", "all-warnings", "-I", str(CUDA_SOURCES),
        str(CUDA_SOURCES / "launcher.cu"),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = Path(folder) / "overlay.cubin", Path(folder) / "overlay.ptx"
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        report = _nvcc([*common, "-cubin", target, "-Xptxas", "-v", "-o", str(cubin)], architecture)
        _nvcc([*common, "-ptx", f"-arch=compute_{architecture}", "-o", str(ptx)], architecture)
        text = ptx.read_text()
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)\n}", text, re.DOTALL))
    entries = re.findall(
        r"Compiling entry function '(\w+)'.*?\n.*?(\d+) bytes stack frame, (\d+) bytes spill "
        r"stores, (\d+) bytes spill loads\n.*?Used (\d+) registers",
        report,
        re.DOTALL,
    )
    if not entries:
        raise RuntimeError(f"nvcc reported no kernel for sm_{architecture}: {report[:200]!r}")
    return [
        Compiled(name, int(registers), int(stores) + int(loads), int(stack), bodies[name], "")
        for name, stack, stores, loads, registers in entries
    ]


def _run(command: list[str]) -> str:
    """The tool's output, or nothing where it does not know the file's architecture."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else ""


def _nvcc(command: list[str], architecture: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"nvcc refused the overlay for sm_{architecture}: {ran.stderr}")
    return ran.stderr
