"""Random suites against their truth: ``python -m tests.chaos --seconds 3600 --seed 0``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.judge import judge
from tests.chaos.plan import KILLS, TESTS, plan
from tests.chaos.play import play
from tests.chaos.totals import Totals


def main() -> int:
    """Play suites until the time is over; 1 if anything went wrong."""
    # A shell has its background jobs ignore SIGINT, and pytest would inherit that. A run that ends
    # by SIGTERM, as by timeout(1), takes its suite with it.
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    options = _options()
    ends, totals = time.monotonic() + options.seconds, Totals(_needed(options))
    seed = options.seed
    try:
        while not totals.suites or (time.monotonic() < ends and not options.once):
            _one(seed, totals, options)
            seed += 1
    except KeyboardInterrupt:
        print(f"interrupted in seed {seed}")
    print(totals)
    return bool(totals.seeds)


def _one(seed: int, totals: Totals, options: argparse.Namespace) -> None:
    suite = plan(seed, kills=options.kills, tests=options.tests)
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-seed-{seed}-"))
    (directory / "suite").mkdir()
    played = play(suite, directory)
    findings = judge(suite, played)
    totals.add(suite, played, findings)
    shown = ", ".join([" ".join(suite.args), *map(str, played.killed)])
    print(f"seed {seed}: {played.seconds:.0f} s, {shown}", flush=True)
    for finding in findings:
        print(f"  {finding}", flush=True)
    if findings or options.once:
        print(f"  its files and output are in {directory}", flush=True)
    else:
        shutil.rmtree(directory)


def _needed(options: argparse.Namespace) -> str:
    """The options that change what a seed means."""
    tests = "" if options.tests == TESTS else f" --tests {options.tests}"
    return tests + ("" if options.kills == KILLS else f" --kills {options.kills}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="no suite begins after them")
    parser.add_argument("--seed", type=int, default=0, help="the first one; they are counted up")
    parser.add_argument("--once", action="store_true", help="one suite, whose files are kept")
    parser.add_argument("--tests", type=int, default=TESTS, help="about how many in a suite")
    parser.add_argument("--kills", type=float, default=KILLS, help="for each suite, on average")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
