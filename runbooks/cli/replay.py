"""`stallscope replay`: yesterday's requests at their own times, and a verdict on the answers."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from io import FileIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError
from runbooks.cli.terminal import emit
from runbooks.replay import compare, limits, results, traces

if TYPE_CHECKING:
    from runbooks.replay import sender

SCHEMA: Final = 1
_EXAMPLES: Final = """examples:
  stallscope replay trace.jsonl --url http://HOST/v1/completions --model M
  stallscope replay a.csv --format router --column time=t ...
  stallscope replay check run.json --limits limits.json --junit run.xml
"""


class _Replay:
    name = "replay"
    help = "send a trace's requests again at their own times; check a run against limits"
    group = "before"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument("target", nargs="*", metavar="TRACE | check RESULT")
        parser.add_argument("--url", help="a completions endpoint that streams")
        parser.add_argument("--model", help="the model's name there")
        parser.add_argument("--format", choices=traces.FORMATS, default="mooncake")
        parser.add_argument("--column", action="append", default=[], metavar="FIELD=NAME")
        parser.add_argument("--time-scale", type=_positive, default=1.0, help="2: half the pace")
        parser.add_argument("--timeout", type=_positive, default=300.0, metavar="SECONDS")
        parser.add_argument("--requests", type=int, metavar="N", help="only the first N")
        parser.add_argument("--stop-errors", type=_positive, metavar="SHARE", help="such as 0.1")
        parser.add_argument("--out", type=Path, metavar="FILE", help="JSONL, as answers come")
        parser.add_argument("--limits", type=Path, metavar="FILE", help="JSON (none: the defaults)")
        parser.add_argument("--junit", type=Path, metavar="FILE")
        parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two results, B - A")
        parser.add_argument("--json", action="store_true", help="the verdicts as JSON")

    def run(self, args: argparse.Namespace) -> int:
        try:
            if args.compare and not args.target:
                return _compare(*args.compare, as_json=args.json)
            if args.compare:
                raise UsageError("--compare takes two results and no trace")
            if args.target[:1] == ["check"] and len(args.target) == 2:
                return _check([row.ttft_s for row in results.read(Path(args.target[1]))], args)
            if len(args.target) != 1:
                raise UsageError("give one trace, `check RESULT`, or `--compare A B`")
            return _replay(Path(args.target[0]), args)
        except (limits.LimitsError, results.ResultError, traces.TraceError) as error:
            raise UsageError(str(error)) from None


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _out(path: Path | None) -> AbstractContextManager[FileIO | None]:
    try:
        return path.open("wb", buffering=0) if path else nullcontext()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _check(ttfts_s: list[float | None], args: argparse.Namespace) -> int:
    wanted = limits.read_limits(args.limits) if args.limits else limits.POST_LIMITS
    verdicts = limits.judge(ttfts_s, wanted)
    passed = all(verdict.passed for verdict in verdicts)
    if args.junit:
        _write(args.junit, limits.junit(verdicts))
    if args.json:
        rows = [
            {**asdict(verdict), "margin": verdict.margin, "passed": verdict.passed}
            for verdict in verdicts
        ]
        emit(json.dumps({"schema": SCHEMA, "passed": passed, "limits": rows}, indent=2))
    else:
        emit("\n".join(limits.text(verdict) for verdict in verdicts))
    return exit_codes.OK if passed else exit_codes.CRITICAL


def _compare(*paths: str, as_json: bool) -> int:
    lines, runs = [], []
    for name, path in zip("AB", paths, strict=True):
        rows = results.read(Path(path))
        runs.append([row.ttft_s for row in rows if row.ttft_s is not None])
        lines.append(f"{name}: {len(runs[-1])} of {len(rows)} answered, {path}")
        if not runs[-1]:
            raise UsageError(f"{path}: no request was answered; nothing to compare")
    found = compare.differences(*runs)
    if as_json:
        rows_json = [{**asdict(difference), "word": difference.word} for difference in found]
        emit(json.dumps({"schema": SCHEMA, "differences": rows_json}, indent=2))
    else:
        emit("\n".join([*lines, *(compare.text(difference) for difference in found)]))
    return exit_codes.OK


def _replay(trace: Path, args: argparse.Namespace) -> int:
    try:
        import aiohttp  # noqa: F401 (said here in one line rather than in the middle of a run)

        from runbooks.replay import sender
    except ImportError:
        raise UsageError("replay needs aiohttp: pip install 'stallscope[replay]'") from None
    if not args.url or not args.model:
        raise UsageError("a replay needs --url and --model")
    columns = dict(pair.partition("=")[::2] for pair in args.column)
    requests = islice(traces.read(trace, args.format, columns), args.requests)
    head = list(islice(requests, sender.AHEAD))  # refused here, an earlier result stays as it was
    options = sender.Options(args.url, args.model, args.time_scale, args.timeout, args.stop_errors)
    run = sender.Run([], Counter())
    work = _with_progress(sender.replay(chain(head, requests), options, run), run)
    interrupted = False
    with _out(args.out) as file:
        writer = results.Writer(file) if file else None
        if writer:
            run.sink = lambda result: writer.line(asdict(result))
        try:
            asyncio.run(work)
        except KeyboardInterrupt:
            interrupted = True
            run.stopped = "interrupted"
        if writer:
            writer.end(run.stopped)
            if writer.fault:
                run.stopped = f"{args.out}: {writer.fault}"
    if not args.json or interrupted:
        emit(_summary(run))
    if interrupted:
        return exit_codes.INTERRUPTED
    return max(
        _check([r.ttft_s if r.outcome == "ok" else None for r in run.results], args),
        exit_codes.CRITICAL if run.stopped else exit_codes.OK,
    )


async def _with_progress(work: object, run: sender.Run) -> None:
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    while not (await asyncio.wait({task}, timeout=1))[0]:
        if sys.stderr.isatty():
            print(f"\r{_counts(run)}", end="", file=sys.stderr, flush=True)
    await task


def _counts(run: sender.Run) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in run.outcomes.most_common())
    return f"{len(run.results)} answered: {counts or 'none yet'}"


def _summary(run: sender.Run) -> str:
    lines = [_counts(run)]
    if run.stopped:
        lines.append(f"stopped early: {run.stopped}")
    late_s = [result.sent_s - result.due_s for result in run.results]
    if late_s:
        lines.append(f"sent late: p99 {limits.quantile(late_s, 0.99) * 1000:.2f} ms")
    rows = [
        results.Row(r.due_s, r.input_tokens, r.ttft_s if r.outcome == "ok" else None)
        for r in sorted(run.results, key=lambda row: row.due_s)
    ]
    for name, part in (*results.thirds(rows), *results.bands(rows)):
        seen = [row.ttft_s for row in part if row.ttft_s is not None]
        median = f"{limits.quantile(seen, 0.5):.3f} s" if seen else "unseen"
        lines.append(f"{name}: {len(seen)} of {len(part)} answered, TTFT p50 {median}")
    lines.append("hit source: unseen")
    return "\n".join(lines)


COMMAND: Command = _Replay()
