"""Random programs against their truth: ``python -m tests.random_programs --count 2000``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.random_programs.judge import judge


def main() -> int:
    """Judge the programs and print the numbers; 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=2000, help="how many seeds")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="random-programs-"))
    totals = judge(options.first, options.count, directory)
    print(totals, f"its files are in {directory}", sep="\n", flush=True)
    return bool(totals.accused or totals.missed)


if __name__ == "__main__":
    sys.exit(main())
