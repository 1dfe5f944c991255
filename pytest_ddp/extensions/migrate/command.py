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
        by_heading: dict[str, list[str]] = {}
        for one in of_file:
            heading = " or ".join(_options(one)) + (one.reason and f": {one.reason}")
            by_heading.setdefault(heading, []).append(one.test.name)
        for heading, names in by_heading.items():
            yield f"  {heading}"
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
    for number, line in enumerate(_commands(found, paths)):
        yield ("     " if number else "try: ") + line


def _options(one: Found) -> list[str]:
    """The option that runs a test on ranks, or several for several world sizes; or in words."""
    if one.route is not Route.EVERYWHERE or not one.sizes:
        return [one.route.value]
    return [one.route.value.replace("=N", f"={size}") for size in sorted(one.sizes)]


def _commands(found: list[Found], paths: list[Path]) -> Iterator[str]:
    """Command lines of pytest that together run all tests on ranks for which there is an option."""
    routes_found = {one.route for one in found}
    adopted = [route for route in (Route.SPAWN, Route.TESTCASE) if route in routes_found]
    # The option runs all tests on ranks that it is given: a file only if others may be, too.
    mixed = {one.module.path for one in found if one.route in (*adopted, Route.NONE)}
    places: dict[str, dict[str, None]] = {}
    for one in found:
        if one.route is Route.EVERYWHERE:
            own = f"::{one.test.name}" if one.module.path in mixed else ""
            for option in _options(one):
                places.setdefault(option, {})[shown(one.module.path) + own] = None
    everything = " ".join(map(str, paths))
    if adopted:
        kinds = (route.value.partition("=")[2] for route in adopted)
        yield f"pytest --ddp-adopt={','.join(kinds)} {everything}"
    elif Route.UNKNOWN in routes_found:
        yield f"pytest --ddp-adopt=all {everything}"
    has_others = routes_found - {Route.EVERYWHERE, Route.PLAIN} or len(places) > 1
    for option, where in places.items():
        yield f"pytest {option} {' '.join(where) if has_others else everything}"


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"


def shown(path: Path) -> str:
    """The path relative to the working directory, if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
