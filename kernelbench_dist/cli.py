"""The program `kernelbench-dist`, also `python -m kernelbench_dist`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from kernelbench_dist import __version__, build_info


def _info(arguments: argparse.Namespace) -> int:
    info = build_info()
    print(json.dumps(dataclasses.asdict(info), indent=2) if arguments.json else info)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0 done, 2 wrong use (argparse's own)."""
    parser = argparse.ArgumentParser(
        prog="kernelbench-dist",
        description="Emulates the ranks of a distributed program on one device.",
    )
    parser.add_argument("--version", action="version", version=f"kernelbench_dist {__version__}")
    verbs = parser.add_subparsers(metavar="verb", required=True)
    info = verbs.add_parser(
        "info", help="what is installed, what it was built for, what is missing"
    )
    info.add_argument("--json", action="store_true", help="as JSON")
    info.set_defaults(run=_info)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
