"""Programs with known races: ``python -m fidelity.races --truth`` or ``--table`` (``--only NAME``).

``--truth`` proves without exploring that each race fails under its delays, and that each legal
program passes under sleeps at all of its places. ``--table`` compares how races are found, in
equal wall time for each race, and whether a legal program is accused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fidelity.races.records import programs
from fidelity.races.truth import truth


def main(arguments: Sequence[str]) -> int:
    """Return 0 if all is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m fidelity.races", description=__doc__)
    parser.add_argument("--truth", action="store_true", help="prove the truth of programs")
    parser.add_argument("--only", default="", metavar="NAME", help="programs with this in the name")
    given = parser.parse_args(arguments)
    mistakes = 0
    if given.truth:
        for program in programs(given.only):
            found = truth(program)
            print(found, flush=True)
            for kind, run in found.mistakes():
                mistakes += 1
                print(f"{kind}: {run.outcome}: {run.name}\n{run.text}", file=sys.stderr, flush=True)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
