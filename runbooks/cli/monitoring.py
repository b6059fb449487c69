"""`stallscope monitoring`: boards, rules and alerts, built, checked, drawn and published."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runbooks.cli import exit_codes
from runbooks.cli.commands import Command
from runbooks.cli.parser import UsageError
from runbooks.cli.terminal import emit

if TYPE_CHECKING:
    from dashboards.durations import Scale
    from dashboards.model import Board

SCHEMA: Final = 1
TOKEN_VARIABLE: Final = "STALLSCOPE_GRAFANA_TOKEN"
TOKEN_FILE_VARIABLE: Final = f"{TOKEN_VARIABLE}_FILE"
_EXAMPLES: Final = f"""examples:
  stallscope monitoring build --out boards --runbook-base https://wiki/runbooks
  stallscope monitoring rules > /etc/prometheus/rules/stallscope.yaml
  stallscope monitoring check --from http://prometheus:9090
  stallscope monitoring preview --from http://prometheus:9090 --out previews
  stallscope monitoring publish --url https://grafana.example.com --dry-run
each of these has --help and --json
environment:
  {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}: the token of a
  service account (never on the command line); HTTPS_PROXY, NO_PROXY as usual
exit codes: 0 done, or nothing to do; 1 check found something, or --dry-run
  would change something; 64 usage, or the server refuses
"""
_ACTIONS: Final = {
    "build": "write boards, rules and an example for Alertmanager",
    "rules": "print the rules as Prometheus reads them",
    "check": "hold the generated files and every query against what is known",
    "preview": "draw every panel from a Prometheus to PNG and HTML",
    "publish": "put the boards into a Grafana",
}


class _Monitoring:
    name = "monitoring"
    help = "boards, rules and alerts: build, check, preview and publish them"
    group = "set up"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(_ACTIONS))
        found = {
            name: actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
            for name, text in _ACTIONS.items()
        }
        for action in found.values():
            action.add_argument("--json", action="store_true", help="the result as JSON")
        for name in ("build", "rules"):
            found[name].add_argument(
                "--time-scale",
                type=float,
                default=1.0,
                metavar="X",
                help="multiply every duration of the rules, to try them quickly (1)",
            )
        for name in ("build", "rules", "publish"):
            found[name].add_argument(
                "--runbook-base", metavar="URL", help="where your copies of runbooks/pages are"
            )
        check = found["check"].add_argument
        check(
            "--from", dest="source", metavar="URL", help="a Prometheus: say what it has no data of"
        )
        build = found["build"].add_argument
        build("--out", type=Path, metavar="DIR", help="(default: where the shipped files lie)")
        preview = found["preview"].add_argument
        preview("--from", dest="source", required=True, metavar="URL", help="a Prometheus")
        preview("--out", type=Path, default=Path("previews"), metavar="DIR", help="(previews)")
        preview("--board", action="append", default=[], metavar="UID", help="only this one")
        preview("--minutes", type=float, default=60.0, metavar="N", help="of history (60)")
        preview("--interval", default="2m", metavar="D", help="the window of rates (2m)")
        preview("--set", action="append", default=[], metavar="NAME=REGEX", help="a variable")
        publish = found["publish"].add_argument
        publish("--url", required=True, metavar="URL", help="of Grafana's start page")
        publish("--folder", default="stallscope", metavar="UID", help="(stallscope)")
        publish("--dry-run", action="store_true", help="write nothing; say what would change")
        publish("--diff", action="store_true", help="show what changes, line by line")
        publish("--ca", type=Path, metavar="FILE", help="the CA that signed its certificate")
        publish("--insecure", action="store_true", help="do not check its certificate")

    def run(self, args: argparse.Namespace) -> int:
        try:
            return _RUN[args.action](args)
        except ImportError as error:
            name = (error.name or "").partition(".")[0]
            raise UsageError(
                f"{args.action} needs the Python package {name or error}: "
                "pip install 'stallscope[monitoring]'"
            ) from None


def _build(args: argparse.Namespace) -> int:
    from dashboards import generate
    from dashboards.rule_files import RUNBOOK_BASE

    scale = _scale(args.time_scale)
    base = _runbook_base(args.runbook_base)
    if args.out is None and (scale.factor != 1 or base != RUNBOOK_BASE):
        raise UsageError("say with --out where to: these would not be the files that are shipped")
    folder = args.out or generate.FOLDER
    try:
        changed = generate.write(folder, generate.files(scale, base))
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be written: {error.strerror}") from None
    if args.json:
        emit(json.dumps({"schema": SCHEMA, "folder": str(folder), "written": changed}))
    else:
        emit("\n".join(f"wrote {folder / name}" for name in changed) or f"{folder}: up to date")
    return exit_codes.OK


def _rules(args: argparse.Namespace) -> int:
    from dashboards import rule_files
    from dashboards.model import Links

    built = rule_files.build(_scale(args.time_scale), Links(_runbook_base(args.runbook_base)))
    emit(json.dumps(built, indent=2) if args.json else rule_files.to_yaml(built, "Rules").rstrip())
    return exit_codes.OK


def _check(args: argparse.Namespace) -> int:
    from dashboards import generate, lint
    from runbooks.library import page_names

    found = lint.offences(page_names())
    stale = generate.stale(generate.FOLDER, generate.files())
    found += [f"{generate.FOLDER / name}: is not what the code builds; build it" for name in stale]
    if args.source:
        found += _without_data(args.source)
    if args.json:
        emit(json.dumps({"schema": SCHEMA, "offences": found}, indent=2))
    else:
        emit("\n".join(found) or "all boards and rules are as they should be")
    return exit_codes.WARNING if found else exit_codes.OK


def _without_data(url: str) -> list[str]:
    """The metrics that boards and rules read and a server has not one series of."""
    from dashboards import preview
    from dashboards.metric_names import read_by

    moment = time.time()
    try:
        server = preview.Prometheus(url)
        return [
            f"{url}: has no {metric}, which is read by {', '.join(readers)}"
            for metric, readers in read_by().items()
            if not server.at(f"count({metric})", moment)
        ]
    except preview.PreviewError as error:
        raise UsageError(str(error)) from None


def _preview(args: argparse.Namespace) -> int:
    import matplotlib  # noqa: F401 (missed before Prometheus is asked, not after)

    from dashboards import preview

    if not 0 < args.minutes <= 10_080:
        raise UsageError(f"--minutes: {args.minutes:g} is not above 0 and at most a week")
    chosen = dict(pair.partition("=")[::2] for pair in args.set)
    end = time.time()
    seconds = args.minutes * 60
    pages = []
    try:
        server = preview.Prometheus(args.source)
        for board in _boards(args.board):
            drawn = [
                preview.ask(server, panel, end, seconds, args.interval, chosen)
                for panel in board.panels()
            ]
            pages.append(preview.write(args.out, board, drawn))
    except preview.PreviewError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"--out {args.out}: cannot be written: {error.strerror}") from None
    if args.json:
        emit(json.dumps({"schema": SCHEMA, "pages": [str(page) for page in pages]}))
    else:
        emit("\n".join(f"drew {page}" for page in pages))
    return exit_codes.OK


def _publish(args: argparse.Namespace) -> int:
    import grafana_client  # noqa: F401 (a missing extra is said before anything is asked)

    from dashboards import boards, publish
    from dashboards.model import Links

    if args.ca is not None and not args.ca.is_file():
        raise UsageError(f"--ca {args.ca}: there is no such file")
    verify = False if args.insecure else str(args.ca) if args.ca else True
    access = publish.Access(args.url, _token(), verify)
    links = Links(_runbook_base(args.runbook_base))
    try:
        publisher = publish.Publisher(access, args.folder, args.dry_run)
        results = publisher.publish([boards.build(board, links) for board in boards.BOARDS])
    except publish.PublishError as error:
        raise UsageError(str(error)) from None
    changes = [result for result in results if result.change != "unchanged"]
    if args.json:
        rows = [
            {"uid": r.uid, "change": r.change} | ({"diff": r.diff} if args.diff else {})
            for r in results
        ]
        emit(json.dumps({"schema": SCHEMA, "dry_run": args.dry_run, "boards": rows}, indent=2))
    else:
        would = "would be " if args.dry_run else ""
        for result in results:
            told = would if result.change != "unchanged" else ""
            emit(f"{result.uid}: {told}{result.change}")
            if args.diff and result.diff:
                emit(result.diff.rstrip("\n"))
    return exit_codes.WARNING if args.dry_run and changes else exit_codes.OK


_RUN: Final = {
    "build": _build,
    "rules": _rules,
    "check": _check,
    "preview": _preview,
    "publish": _publish,
}


def _scale(factor: float) -> Scale:
    from dashboards.durations import Scale, ScaleError

    try:
        return Scale(factor)
    except ScaleError as error:
        raise UsageError(f"--time-scale: {error}") from None


def _runbook_base(given: str | None) -> str:
    from dashboards.rule_files import RUNBOOK_BASE

    if given is None:
        return RUNBOOK_BASE
    if not given.startswith(("http://", "https://")) or any(c.isspace() for c in given):
        raise UsageError(f"--runbook-base: {given!r} is not a URL such as {RUNBOOK_BASE}")
    return given


def _boards(uids: list[str]) -> list[Board]:
    from dashboards.boards import BOARDS

    known = {board.uid: board for board in BOARDS}
    for uid in uids:
        if uid not in known:
            raise UsageError(f"--board: there is no {uid!r}; there are {', '.join(known)}")
    return [known[uid] for uid in uids] if uids else list(BOARDS)


def _token() -> str:
    """From the environment or the file it names. Raises UsageError."""
    if path := os.environ.get(TOKEN_FILE_VARIABLE):
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{TOKEN_FILE_VARIABLE}: {path}: {error}") from None
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise UsageError(f"no token for Grafana: set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{TOKEN_VARIABLE}: what it holds is no token")
    return token


COMMAND: Command = _Monitoring()
