"""``python -m ddp_reference.diagnosis crash|bisect|audit``.

Exit codes: 0 nothing is wrong, 1 something is, 2 the command line is wrong.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from .audit import audit_in_place
from .bisect import first_failing_block
from .launch import crash_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run one tool; returns the exit code."""
    options = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddp_reference.diagnosis", description=__doc__)
    tools = parser.add_subparsers(required=True)
    crash = tools.add_parser("crash", help="run a training entry and say which rank broke, where")
    crash.add_argument("--ranks", type=int, default=2)
    crash.add_argument("--timeout", type=float, default=600.0, help="seconds")
    crash.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="a file, or -m and a module, with its arguments",
    )
    crash.set_defaults(run=_crash)
    bisect = tools.add_parser("bisect", help="grow a model until its first failing block")
    bisect.add_argument("--ranks", type=int, default=1, help="wrapped in DDP from 2 on")
    bisect.add_argument("--timeout", type=float, default=120.0, help="seconds for each try")
    bisect.add_argument(
        "factory", help="module:function() -> list of functions that build a block, inputs"
    )
    bisect.set_defaults(run=_bisect)
    audit = tools.add_parser("audit", help="what a forward pass writes to in place")
    audit.add_argument("factory", help="module:function() -> module, inputs")
    audit.set_defaults(run=_audit)
    return parser


def _crash(options: argparse.Namespace) -> int:
    program: list[str] = [word for word in options.program if word != "--"]
    if not program:
        raise SystemExit("crash: say what to run, for example: crash -- train.py --epochs 1")
    report = crash_report(program, ranks=options.ranks, timeout=options.timeout)
    print(report)
    return int(report.cause is not None)


def _bisect(options: argparse.Namespace) -> int:
    try:
        report = first_failing_block(options.factory, ranks=options.ranks, timeout=options.timeout)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(report)
    return int(report.failing is not None)


def _audit(options: argparse.Namespace) -> int:
    sys.path.insert(0, str(Path(os.getcwd())))
    module, inputs = resolve_name(options.factory)()
    findings = audit_in_place(module, *inputs)
    for finding in sorted(findings, key=lambda finding: finding.harmless):
        print("harmless:" if finding.harmless else "HARMFUL: ", finding)
    if not findings:
        print("forward writes to nothing in place")
    return int(any(not finding.harmless for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
