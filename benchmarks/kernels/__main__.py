"""`python -m benchmarks.kernels`: correctness, 5 whole timing runs, the sanitizer, then the bars.

QUICK=1 runs fewer shapes once. Exits 0 only when no bar is short and nothing was wrong.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.kernels import colmajor, contenders, correctness, overlay_launcher, rivals, sanitize
from benchmarks.kernels import report as reporting
from benchmarks.kernels.suite import SHAPES
from benchmarks.report import take_no_arguments
from patched_engine.kernels.aot import CompileUnavailable

COMMAND = "python -m benchmarks.kernels"
RESULTS = Path("benchmarks/results")
RUNS = 5


def _versions() -> str:
    import triton

    card = torch.cuda.get_device_name()
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
    release = nvcc.stdout.split("release ")[-1].split(",")[0] if nvcc.returncode == 0 else "none"
    return (
        f"{card}, driver {driver}, torch {torch.__version__}, triton {triton.__version__}, "
        f"nvcc {release}"
    )


def _build_overlay() -> str:
    try:
        path = overlay_launcher.build(rivals.folder() / "stallscope_overlay.so")
    except CompileUnavailable as error:
        print(f"overlay not run: {error}")
        return ""
    return str(path)


def _timing_runs(overlay: str, runs: int) -> list[dict[str, float]]:
    """``runs`` whole-script runs, each in a process of its own."""
    records = []
    for number in range(runs):
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.kernels.suite", overlay],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [line for line in ran.stdout.splitlines() if line.startswith("RECORD ")]
        notes = [line for line in ran.stdout.splitlines() if not line.startswith("RECORD ")]
        if not lines:
            raise SystemExit(f"timing run {number + 1} failed: {ran.stderr[-2000:]}")
        records.append(json.loads(lines[0].removeprefix("RECORD ")))
        print(f"timing run {number + 1} of {runs} done", *notes[:2], flush=True)
    return records


def main() -> int:
    """Run everything, print the table and the bars, write the result files; the exit status."""
    take_no_arguments(__doc__)
    if not torch.cuda.is_available():
        print("no CUDA device is visible: run this on the card to be measured")
        return 2
    quick = os.environ.get("QUICK") == "1"
    overlay = _build_overlay()
    wrong: list[str] = []
    lines = [
        "# The FP8 activation kernels beside their rivals",
        "",
        f"Command: `{'QUICK=1 ' if quick else ''}{COMMAND}`. Card and versions: {_versions()}. "
        f"Date: {datetime.date.today().isoformat()}.",
        f"Medians of {1 if quick else RUNS} whole-script runs; CUDA graphs; buffers rotated past "
        "L2; times in microseconds.",
        "Our Triton kernels overlap their launch with the end of the kernel before (programmatic "
        "dependent launch), here as in an engine; each rival launches as it does by itself, and "
        "'launches apart' is ours without the overlap.",
        "",
    ]
    tables: dict[str, tuple[correctness.Runner, tuple[torch.dtype, ...]]] = {
        "Triton op": (contenders.triton_op, (torch.float8_e4m3fn, torch.bfloat16))
    }
    if overlay:
        loaded = overlay_launcher.load(Path(overlay))
        tables["CUDA overlay"] = (loaded, (torch.float8_e4m3fn,))
    checks = ["## Correctness", ""]
    for name, (run, dtypes) in tables.items():
        verdicts = correctness.table(run, dtypes=dtypes, quick=quick)
        failed = [verdict for verdict in verdicts if not verdict.passed]
        wrong += [f"{name}: {verdict}" for verdict in failed]
        graph = correctness.one_graph_over_new_routings(run)
        if not graph:
            wrong.append(f"{name}: a replayed graph differs from a fresh launch")
        checks.append(
            f"- {name}: {len(verdicts)} cases against float64, {len(failed)} failed; worst scale "
            f"error {max(v.scale_error for v in verdicts):.2e}, worst code mismatch "
            f"{max(v.code_mismatch for v in verdicts):.2e}, most code steps "
            f"{max(v.max_code_steps for v in verdicts)}; padding kept and rerun identical in "
            f"{sum(v.padding_kept and v.rerun_identical for v in verdicts)}; one graph over new "
            f"routings: {'equal' if graph else 'DIFFERS'}"
        )
    if rivals.vllm_function() is not None:
        equal = colmajor.equality(quick)
        unequal = [name for name, same in equal if not same]
        wrong += [f"spec (B) is not bit-equal: {name}" for name in unequal]
        checks.append(
            f"- spec (B): {len(equal) - len(unequal)} of {len(equal)} cases bit-equal to vLLM's own"
        )
        problem = colmajor.replacement_runs_ours()
        checks.append(
            f"- vLLM replacement at every shape of (B): {problem or 'every call ran ours'}"
        )
        wrong += [f"vLLM replacement: {problem}"] if problem else []
    else:
        checks.append("- spec (B): not compared, vLLM's module is not in the rivals' folder")
    for tool, closing in ({} if quick else sanitize.watch(overlay)).items():
        checks.append(f"- compute-sanitizer {tool}: {closing}")
        if not closing.startswith("not run") and not re.search(r"\b0 errors", closing):
            wrong.append(f"compute-sanitizer {tool}: {closing}")
    print("\n".join(checks), flush=True)
    records = _timing_runs(overlay, 1 if quick else RUNS)
    names = [shape[0] for shape in SHAPES if f"triton {shape[0]}" in records[0]]
    lines += reporting.timing_table(records, names)
    lines += ["", *reporting.colmajor_table(records), "", *reporting.layer_table(records), ""]
    bars = [*reporting.spec_a_bars(records), *reporting.spec_b_bars(records)]
    bar_lines = [bar.line() for bar in bars]
    lines += [*checks, "", "## Bars", "", "```", *bar_lines, "```"]
    print("\n".join(lines[4:]))
    for problem in wrong:
        print(f"WRONG {problem}")
    if not quick:
        target = Path(os.environ.get("RESULTS", RESULTS))
        target.mkdir(parents=True, exist_ok=True)
        (target / "activation_kernel.md").write_text("\n".join(lines) + "\n")
        record = {"versions": _versions(), "command": COMMAND, "runs_seconds": records}
        (target / "activation_kernel.json").write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong or any(bar.verdict == "short" for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
