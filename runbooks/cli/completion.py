"""`stallscope completion`: a shell's completion script, made from the commands themselves."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from typing import Final

from runbooks.cli import commands, exit_codes
from runbooks.cli.commands import Command

SCHEMA: Final = 1
_EXAMPLES: Final = """examples:
  source <(stallscope completion bash)     for this shell
  stallscope completion bash > /etc/bash_completion.d/stallscope
  stallscope completion zsh > "${fpath[1]}/_stallscope"
"""
_BASH: Final = """# Made by `stallscope completion {shell}`: make it again after an update.
_stallscope() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words={commands} ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words={commands}; fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  if [ ${{#COMPREPLY[@]}} -eq 0 ]; then
    COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
  fi
}}
complete -o filenames -F _stallscope stallscope
"""


class _Completion:
    name = "completion"
    help = "print the completion of commands and options for bash or zsh"
    group = "set up"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = _EXAMPLES
        parser.add_argument("shell", choices=("bash", "zsh"))
        parser.add_argument("--json", action="store_true", help="the words by command as JSON")

    def run(self, args: argparse.Namespace) -> int:
        from runbooks.cli.terminal import emit

        words = {name: sorted(_words(name, target)) for name, target in commands.targets().items()}
        if args.json:
            emit(json.dumps({"schema": SCHEMA, "commands": words}))
            return exit_codes.OK
        cases = "\n".join(
            f"    {name}) words={shlex.quote(' '.join(of_command))} ;;"
            for name, of_command in words.items()
        )
        head = "autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else ""
        listed = shlex.quote(" ".join(words))
        emit(head + _BASH.format(shell=args.shell, cases=cases, commands=listed))
        return exit_codes.OK


def _words(name: str, target: str) -> Iterator[str]:
    """The options, choices and pages that may follow one command."""
    try:
        command = commands.load(target)
    except ImportError:
        return
    parser = argparse.ArgumentParser(prog=name, add_help=True)
    command.add_arguments(parser)
    yield from set(_of(parser))
    if name == "runbook":
        from runbooks.library import page_names

        yield from page_names()


def _of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield name
                yield from _of(inner)
        elif action.choices and not action.option_strings:
            yield from map(str, action.choices)


COMMAND: Command = _Completion()
