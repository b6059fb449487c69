"""The root of the `stallscope` command: finds a command, runs it, and answers with an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from runbooks.cli import commands, config, exit_codes
from runbooks.cli.parser import Parser, UsageError, nearest
from runbooks.cli.terminal import emit, silence_stdout, style

PROG: Final = "stallscope"
TRACEBACK_VARIABLE: Final = "STALLSCOPE_TRACEBACK"
ABOUT: Final = "finds what stalls prefill: a late rank, a full shard, a stuck client"
_EXAMPLES: Final = (
    ("stallscope diagnose --from $STALLSCOPE_DIR", "what is wrong, what to run next"),
    ("stallscope diagnose --watch", "the same, refreshed each second"),
    ("stallscope runbook straggler-rank", "what it means, what to do"),
)
_HELP_FLAGS: Final = frozenset({"-h", "--help", "help"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises, never leaves a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # started with it closed: `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lasts)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a C locale must not stop a diagnosis
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse: 0 after --help, 64 after a usage error
        return stop.code if isinstance(stop.code, int) else exit_codes.OK
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # the reader has what it wanted
        silence_stdout()
        return exit_codes.OK
    except UsageError as error:
        _say(f"{_prog(arguments)}: {error}")
        return exit_codes.USAGE
    except Exception as error:
        return _internal(arguments, error)
    return code


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in _HELP_FLAGS:
        emit(root_help())
        return exit_codes.OK
    if name in {"--version", "-V"}:
        emit(json.dumps({"version": version()}) if "--json" in arguments else f"{PROG} {version()}")
        return exit_codes.OK
    targets = commands.targets()
    if name == "--json" and arguments == ["--json"]:
        emit(json.dumps({"schema": 1, "version": version(), "commands": sorted(targets)}))
        return exit_codes.OK
    if not name:
        _say(root_help())
        return exit_codes.USAGE
    if name not in targets:
        what = "option" if name.startswith("-") else "command"
        hint = nearest(name, targets) or f"see {PROG} --help"
        raise UsageError(f"there is no {what} {name!r}; {hint}")
    command = commands.load(targets[name])
    parser = Parser(prog=f"{PROG} {name}", description=command.help)
    command.add_arguments(parser)
    args = parser.parse_args(arguments[1:])
    config.apply(name, parser, args)
    return command.run(args)


def version() -> str:
    """The installed version, or "source" in a checkout that was never installed."""
    try:
        return metadata.version(PROG)
    except metadata.PackageNotFoundError:
        return "source"


def root_help() -> str:
    """The help of the root: commands by the moment at which they serve."""
    look = style()
    lines = [f"{PROG} {ABOUT}", "", f"usage: {PROG} COMMAND [options]", ""]
    by_group: dict[str, list[tuple[str, str]]] = {group: [] for group in commands.GROUPS}
    for name, target in commands.targets().items():
        try:
            command = commands.load(target)
            by_group.setdefault(command.group, []).append((name, command.help))
        except ImportError as error:
            by_group["set up"].append((name, f"(not available here: {error})"))
    for group, rows in by_group.items():
        if rows:
            when = commands.GROUPS.get(group, "")
            lines.append(f"{look.paint('bold', group)}{f', {when}' if when else ''}")
            for name, text in rows:
                lines += look.wrap(text, " " * 14, first=f"  {name:<12}")
            lines.append("")
    lines.append(look.paint("bold", "examples"))
    lines += [f"  {example:<44}{why}" for example, why in _EXAMPLES]
    lines += ["", look.paint("bold", "exit codes")]
    lines += [f"  {code:>3}  {meaning}" for code, meaning in exit_codes.MEANINGS.items()]
    lines += ["", f"Each command has --help and --json. {PROG} --version prints the version."]
    return "\n".join(lines)


def _prog(arguments: Sequence[str]) -> str:
    is_command = arguments and not arguments[0].startswith("-") and _is_known(arguments[0])
    return f"{PROG} {arguments[0]}" if is_command else PROG


def _is_known(name: str) -> bool:
    return name in commands.targets()


def _internal(arguments: Sequence[str], error: Exception) -> int:
    """One line for a fault of ours, or of an installation that lacks what a command needs."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    prog = _prog(arguments)
    if isinstance(error, ModuleNotFoundError) and error.name:
        _say(
            f"{prog}: needs the Python package {error.name}, which is not installed here "
            f"(the extra 'trace' of {PROG} brings what reads profiles, 'engine' and 'lab' what "
            f"engines need)"
        )
        return exit_codes.USAGE
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, OSError):
        silence_stdout()  # perhaps a full disk: what is buffered cannot be written at exit either
    _say(
        f"{prog}: internal error: {type(error).__name__}: {text} "
        f"(set {TRACEBACK_VARIABLE}=1 to see where)"
    )
    return exit_codes.INTERNAL


def _say(text: str) -> None:
    """To standard error, where a closed one is no reason to fail."""
    if sys.stderr is not None:  # print would take None for standard output
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
