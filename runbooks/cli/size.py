"""`stallscope size`: does this cache tier pay off, and with how many shards."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any, Final

from runbooks.cli import exit_codes
from runbooks.cli.parser import UsageError
from runbooks.cli.terminal import emit, style

SCHEMA: Final = 1
_SEEDS: Final = 40
_MOST_SEEDS: Final = 1000
_MOST_SIMULATED: Final = 400_000  # requests times seeds: some ten seconds
_EXAMPLES: Final = """examples:
  stallscope size                                  the post's engine, one shard
  stallscope size --shards 8                       the same with a shard a rank
  stallscope size --from $STALLSCOPE_DIR           from what an engine does now
  stallscope size --prefill-rate 26000 --shard-gbps 1.2 --rate 0.8 --json
  stallscope size --shards 4 --plot size.svg       p50 and p99 against rho

an input comes from its flag, else from --from, else from the post; the
output names which

exit codes: 0 the tier pays off and rho is low; 1 it does not pay off, or rho
is above 0.6; 2 rho is 1 or more: the queue grows without end; 3 as 0, but
--from did not see all; 64 usage
"""


class _Size:
    name = "size"
    help = "does this cache tier pay off: break-even, shards, rho, p50 and p99"
    group = "before"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from runbooks.sizing.inputs import FIELDS

        parser.epilog = _EXAMPLES
        parser.add_argument("--from", dest="source", metavar="DIR", help="a running engine's pages")
        for field in FIELDS:
            says = f"{field.says}{f', {field.unit}' if field.unit else ''} ({field.default:.4g})"
            parser.add_argument(f"--{field.flag}", metavar="X", help=says)
        parser.add_argument("--seeds", metavar="X", default=str(_SEEDS), help=f"runs ({_SEEDS})")
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .svg, .png or .pdf")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        from runbooks.cli.size_text import render
        from runbooks.sizing import inputs, plan

        given = vars(args)
        try:
            flags = {
                field.flag: inputs.checked(field, text)
                for field in inputs.FIELDS
                if (text := given[field.flag.replace("-", "_")]) is not None
            }
            live, unseen = _live(args.source)
            seeds = _seeds(args.seeds, flags)
            made = plan.make(inputs.gather(flags, live), seeds)
        except inputs.InputError as error:
            raise UsageError(str(error)) from None
        if args.plot is not None:
            _draw(made, args.plot)
        if args.json:
            emit(json.dumps(document(made, unseen)))
        else:
            look = style()
            text = render(made, look)
            for line in unseen:
                said = f"unseen, so another source's value stands: {line}"
                text += "\n" + "\n".join(look.wrap(said, "    ", first="  "))
            emit(text)
        return verdict(made, unseen)


def verdict(made: Any, unseen: tuple[str, ...] = ()) -> int:
    """The exit code of a plan. What rests on values that are not this engine's is no all-clear."""
    from detectors import thresholds

    if made.chosen.rho >= 1:
        return exit_codes.CRITICAL
    if not made.chosen.pays_off or made.chosen.rho > thresholds.RHO_WARNING:
        return exit_codes.WARNING
    return exit_codes.UNSEEN if unseen else exit_codes.OK


def document(made: Any, unseen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The plan as JSON values."""
    from runbooks.sizing.inputs import BY_FLAG

    found = dataclasses.asdict(made)
    found["inputs"] = {
        flag: {"value": value.value, "unit": BY_FLAG[flag].unit, "source": value.source}
        for flag, value in made.inputs.items()
    }
    return {"schema": SCHEMA, "exit_code": verdict(made, unseen), "unseen": list(unseen), **found}


def _seeds(text: str, flags: dict[str, float]) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_SEEDS:
        raise UsageError(f"--seeds must be a whole number from 1 to {_MOST_SEEDS}, not {text}")
    if int(text) * flags.get("requests", 0) > _MOST_SIMULATED:
        raise UsageError(
            f"--requests times --seeds must be at most {_MOST_SIMULATED:,}; give fewer of either"
        )
    return int(text)


def _live(source: str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    if source is None:
        return {}, ()
    from runbooks.sizing.live import read
    from runbooks.sources import recognise, refusal

    named = recognise(source)
    if why := refusal(named):
        raise UsageError(f"--from: {why}")
    if named.kind != "pages" or named.path is None:
        raise UsageError(f"--from: {source} is no folder of pages, which is all that is read here")
    if not named.path.is_dir():
        raise UsageError(f"--from: there is no folder {source}; give the one that the pages are in")
    return read(named.path)


def _draw(made: Any, path: Path) -> None:
    if path.suffix not in {".svg", ".png", ".pdf"}:
        raise UsageError(f"--plot {path}: the name must end in .svg, .png or .pdf")
    try:
        from runbooks.sizing.plots import draw

        draw(made, path)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--plot needs the Python package {error.name}: pip install 'stallscope[size]'"
        ) from None
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot be written: {error.strerror}") from None


COMMAND: Final = _Size()
