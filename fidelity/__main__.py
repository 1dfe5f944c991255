"""Run others' test suites plainly and on ranks, and compare: ``python -m fidelity [PACKAGE ...]``.

Prints a row for each package, and each test whose verdict differs. Fails if one differs
without a reason. Needs the package index for suites that are not in build/fidelity/ yet.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence

from fidelity.comparing import Comparison, compare
from fidelity.reasons import REASONS
from fidelity.running import verdicts
from fidelity.suites import SUITES, Suite

_HEAD = """\
| package | version | ranks | tests | equal | different, with reason | without | date |
|---|---|--:|--:|--:|--:|--:|---|"""


def main(arguments: Sequence[str]) -> int:
    """Return pytest's kind of exit status."""
    packages = [suite.package for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m fidelity", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(packages))
    names = parser.parse_args(arguments).packages or packages
    if unknown := set(names) - set(packages):
        parser.error(f"no suite of {', '.join(sorted(unknown))}; there are {', '.join(packages)}")
    print(_HEAD, flush=True)
    found = [_run(suite) for suite in SUITES if suite.package in names]
    return 0 if all(comparison.faithful for comparison in found) else 1


def _run(suite: Suite) -> Comparison:
    plain, on_ranks = (verdicts(suite, on_ranks=whether) for whether in (False, True))
    comparison = compare(suite.package, plain, on_ranks, REASONS)
    print(row(suite, comparison), flush=True)
    for difference in comparison.differences:
        print(difference, file=sys.stderr, flush=True)
    return comparison


def row(suite: Suite, found: Comparison) -> str:
    """A line of the table."""
    unexplained = len(found.unexplained)
    explained = len(found.differences) - unexplained
    return (
        f"| {suite.package} | {suite.version} | {suite.ranks} | {found.tests} | {found.equal} "
        f"| {explained} | {unexplained} | {datetime.date.today()} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
