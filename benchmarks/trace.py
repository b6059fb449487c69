"""`stallscope trace` beside HTA, TraceLens and pandas: the same question, cold, with its memory.

The question: which rank was late to the collectives, and how long did the others wait. Rivals live
in virtual environments under .rivals (each of the printed commands makes one); one that is not
there is left out by name.
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import QUICK, Bar, Report, take_no_arguments
from benchmarks.trace_files import LATE, write_kineto, write_nsys

ROOT = Path(__file__).resolve().parents[1]
RIVALS = ROOT / ".rivals"
HTA = RIVALS / "hta" / "bin" / "python"
TRACELENS = RIVALS / "tracelens" / "bin" / "python"
SPEEDUP_LIMIT = 10.0
MEMORY_LIMIT = 1 / 3
GROWTH_LIMIT = 1.3  # CPU a byte at the largest set by that at the smallest
MIB = 1 << 20
# Ranks and megabytes in all. The first is the size that HTA and TraceLens were first tried at.
SETS = ((2, 123),) if QUICK else ((2, 123), (8, 492), (8, 1000))
NSYS_KERNELS = 100_000 if QUICK else 1_000_000
RUNS = 1 if QUICK else 3
TIMEOUT_SECONDS = 900

ASK_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
files = {i: path for i, path in enumerate(sys.argv[1:])}
trace = TraceAnalysis(trace_files=files)
print(trace.get_temporal_breakdown(visualize=False).to_string())
try:
    print("stragglers:", trace.get_potential_stragglers())
except Exception as error:
    print("stragglers: none told:", type(error).__name__, error)
"""

ASK_TRACELENS = """
import sys
from TraceLens import NcclAnalyser
if __name__ == "__main__":
    trace = NcclAnalyser(sys.argv[1:], len(sys.argv) - 1, use_multiprocessing=True)
    frame = trace.build_df_nccl_implicit_sync_cat()
    waits = [c for c in frame.columns if "wait" in c.lower()]
    print(frame[waits].sum().to_string())
"""

ASK_PANDAS = """
import sqlite3, sys
import pandas
db = sqlite3.connect(sys.argv[1])
frame = pandas.read_sql_query(
    "SELECT k.*, s.value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k "
    "JOIN StringIds s ON s.id = k.shortName", db)
coll = frame[frame.name.str.startswith("nccl")].sort_values("start")
coll["number"] = coll.groupby("deviceId").cumcount()
coll["duration"] = coll.end - coll.start
wide = coll.pivot(index="number", columns="deviceId", values="duration")
print(wide.sub(wide.min(axis=1), axis=0).sum())
print(frame.groupby("name").apply(lambda f: (f.end - f.start).sum(), include_groups=False))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One cold process: seconds of wall and of CPU, peak resident MB summed over its process tree,
    what it said."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    said: str
    code: int


def measure(command: Sequence[str]) -> Run:
    """Start, watch the tree's memory each 10 ms, and wait."""
    with tempfile.TemporaryFile("w+") as out:
        used = cpu_seconds()
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, tree_bytes(process.pid))
            if time.perf_counter() - began > TIMEOUT_SECONDS:
                os.killpg(process.pid, 9)
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        out.seek(0)
        return Run(seconds, cpu_seconds() - used, peak / MIB, out.read(), process.returncode)


def cpu_seconds() -> float:
    """CPU of all children that have ended, and of theirs: what a busy machine does not stretch."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_bytes(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    total, left = 0, [pid]
    page = os.sysconf("SC_PAGE_SIZE")
    while left:
        one = left.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * page
            for task in Path(f"/proc/{one}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return total


def ours(paths: Sequence[Path]) -> list[str]:
    return [sys.executable, "-m", "runbooks.cli.main", "trace", *map(str, paths)]


def rival(python: Path, script: Path, paths: Sequence[Path]) -> list[str]:
    return [str(python), str(script), *map(str, paths)]


def shown(command: Sequence[str]) -> str:
    """A command as anyone would type it: no machine's paths, files by their names."""
    names = [
        "python" if word == sys.executable else str(word).replace(f"{ROOT}/", "")
        for word in command
    ]
    short = [Path(n).name if n.startswith(tempfile.gettempdir()) else n for n in names]
    return shlex.join(short[:5]) + (" ..." if len(short) > 5 else "")


def median_of(command: Sequence[str], runs: int) -> tuple[Run, float]:
    """The run of median CPU, and the spread of that."""
    done = [measure(command) for _ in range(runs)]
    times = [run.cpu_seconds for run in done]
    middle = statistics.median_low(times)
    chosen = next(run for run in done if run.cpu_seconds == middle)
    return chosen, max(times) - min(times)


def kineto(report: Report, folder: Path) -> None:
    scripts = {}
    for name, text in (("hta", ASK_HTA), ("tracelens", ASK_TRACELENS), ("pandas", ASK_PANDAS)):
        scripts[name] = folder / f"ask_{name}.py"
        scripts[name].write_text(text)
    a_byte = []
    for ranks, megabytes in SETS:
        where = folder / f"{ranks}x{megabytes}"
        where.mkdir()
        files = write_kineto(where, ranks, megabytes)
        label = f"Kineto, {ranks} ranks, {megabytes} MB"
        mine, spread = median_of(ours(files), RUNS)
        assert f"rank {LATE}" in mine.said, mine.said
        report.rows.append(row(label, "stallscope", mine, None, "names rank 1"))
        a_byte.append(mine.cpu_seconds / megabytes)
        if ranks == SETS[0][0]:
            report.notes.append(f"stallscope: {shown(ours(files))}")
        for name, python in (("hta", HTA), ("tracelens", TRACELENS)):
            if not python.exists():
                report.notes.append(f"{name} is not in .rivals: left out")
                continue
            command = rival(python, scripts[name], files)
            other = measure(command)
            if ranks == SETS[0][0]:
                report.notes.append(f"{name}: {shown(command)}")
            said = last_line(other)
            report.rows.append(row(label, name, other, mine, said))
            if other.code == 0:
                report.bars += [
                    Bar(
                        f"{label}: {name} takes so many times the CPU",
                        other.cpu_seconds / mine.cpu_seconds,
                        SPEEDUP_LIMIT,
                        "x",
                        at_most=False,
                        noise=other.cpu_seconds / mine.cpu_seconds * spread / mine.cpu_seconds,
                    ),
                    Bar(
                        f"{label}: memory by {name}'s",
                        mine.peak_mb / other.peak_mb,
                        MEMORY_LIMIT,
                        "x",
                    ),
                ]
        for file in files:
            file.unlink()
    if len(a_byte) > 1:
        report.bars.append(
            Bar("CPU a byte, largest set by smallest", a_byte[-1] / a_byte[0], GROWTH_LIMIT, "x")
        )
    export = write_nsys(folder / "report.sqlite", 2, NSYS_KERNELS)
    label = f"nsys, 2 ranks, {NSYS_KERNELS:,} kernels"
    mine, _ = median_of(ours([export]), RUNS)
    assert f"rank {LATE}" in mine.said, mine.said
    report.rows.append(row(label, "stallscope", mine, None, "names rank 1"))
    if HTA.exists():  # its environment has pandas
        command = rival(HTA, scripts["pandas"], [export])
        other, _ = median_of(command, RUNS)
        report.notes.append(f"pandas: {shown(command)}")
        report.rows.append(row(label, "sqlite + pandas", other, mine, "waits by duration"))


def row(label: str, name: str, run: Run, mine: Run | None, said: str) -> list[str]:
    ratio = f"x{run.seconds / mine.seconds:.1f}" if mine else ""
    memory = f"x{run.peak_mb / mine.peak_mb:.1f}" if mine else ""
    cpu = f"{run.cpu_seconds:.2f} s"
    return [label, name, f"{run.seconds:.2f} s", ratio, cpu, f"{run.peak_mb:.0f} MB", memory, said]


def last_line(run: Run) -> str:
    if run.code:
        return f"failed ({run.code})"
    lines = [line for line in run.said.splitlines() if line.startswith("stragglers")]
    return (lines or ["waits by duration"])[-1][:60]


def version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not there"


def main() -> int:
    take_no_arguments(__doc__)
    report = Report(
        "trace",
        ("input", "tool", "time", "by ours", "CPU", "peak memory", "by ours", "what it says"),
    )
    report.notes.append("cold process each; memory is the sum over the process tree, 10 ms samples")
    report.notes.append(
        "each tool uses all cores, and speed is judged by CPU, which other work here does "
        "not stretch; ours: the median of three, rivals: one run"
    )
    report.notes.append(
        "HTA: python -m venv .rivals/hta; .rivals/hta/bin/pip install HolisticTraceAnalysis. "
        "TraceLens: its repository (AMD-AGI/TraceLens) installed into .rivals/tracelens"
    )
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as name:
        kineto(report, Path(name))
    report.versions.update(
        {
            "HolisticTraceAnalysis": version(HTA, "HolisticTraceAnalysis"),
            "TraceLens": version(TRACELENS, "TraceLens"),
            "pandas": version(HTA, "pandas"),
        }
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
