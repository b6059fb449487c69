"""`python -m lab`: the lab's command by itself."""

from __future__ import annotations

import argparse
import sys

from lab.cli import COMMAND

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="lab",
        description=COMMAND.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    COMMAND.add_arguments(parser)
    sys.exit(COMMAND.run(parser.parse_args()))
