"""``python -m pytest_ddp migrate PATH…``."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from pytest_ddp.extensions.migrate.routes import Found, Route, routes
from pytest_ddp.extensions.migrate.suite import Suite

HELP = "show how to run an existing suite on ranks"
_ADOPTED = (Route.SPAWN, Route.TESTCASE, Route.EVERYWHERE)
_WIDTH = 100


def main(arguments: list[str]) -> int:
    """Print how to run each test; return the exit code."""
    options = _parser().parse_args(arguments)
    if missing := [str(path) for path in options.paths if not path.exists()]:
        print(f"error: no such file or folder: {', '.join(missing)}", file=sys.stderr)
        return 2
    suite = Suite.read(options.paths)
    found = list(routes(suite))
    for line in (*_lines(found), *_broken(suite), *_summary(found, options.paths)):
        print(line)
    return 1 if suite.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ddp migrate",
        description="Report for each test of a suite which option of pytest runs it on ranks "
        "unchanged, or why none does. Nothing of the suite is imported or run.",
    )
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="+", help="a file or a folder")
    return parser


def _lines(found: Iterable[Found]) -> Iterator[str]:
    """The tests by file and route, without those that need no ranks."""
    reported = [one for one in found if one.route is not Route.PLAIN]
    for path, of_file in groupby(reported, lambda one: one.module.path):
        yield f"{shown(path)}"
        by_route: dict[tuple[Route, str], list[str]] = {}
        for one in of_file:
            by_route.setdefault((one.route, one.reason), []).append(one.test.name)
        for (route, reason), names in by_route.items():
            yield f"  {route.value}{reason and f': {reason}'}"
            yield from textwrap.wrap(
                ", ".join(names),
                _WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )


def _broken(suite: Suite) -> Iterator[str]:
    for path, error in suite.broken.items():
        yield f"{shown(path)} could not be read: {error}"


def _summary(found: list[Found], paths: list[Path]) -> Iterator[str]:
    counts = Counter(one.route for one in found)
    if set(counts) - {Route.PLAIN}:
        yield ""
    parts = [f"{counts[route]} by {route.value}" for route in _ADOPTED if counts[route]]
    parts += [f"{counts[Route.DDP]} ddp already"] if counts[Route.DDP] else []
    parts += [f"{counts[Route.NONE]} not on ranks"] if counts[Route.NONE] else []
    parts += [f"{counts[Route.UNKNOWN]} not known"] if counts[Route.UNKNOWN] else []
    plain = counts[Route.PLAIN]
    parts += [f"{plain} where nothing distributed was found"] if plain else []
    yield f"{_tests(len(found))}: {', '.join(parts)}" if found else "no tests found"
    kinds = [
        route.value.partition("=")[2] for route in (Route.SPAWN, Route.TESTCASE) if counts[route]
    ]
    options = [f"--ddp-adopt={','.join(kinds)}"] if kinds else []
    options += [Route.EVERYWHERE.value] if counts[Route.EVERYWHERE] and not kinds else []
    options += ["--ddp-adopt=all"] if counts[Route.UNKNOWN] and not options else []
    if options:
        yield f"try: pytest {' '.join([*options, *map(str, paths)])}"


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"


def shown(path: Path) -> str:
    """The path relative to the working directory, if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
