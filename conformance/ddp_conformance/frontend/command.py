"""``python -m ddp_conformance my_data:make_sampler --as sampler``: checks without a test file.

The checks run as tests of pytest in this process, under pytest-ddp, from one file of this
package; an option carries the request, because every rank collects by itself.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn, TextIO

import pytest

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.registry import all_checks, all_kinds, known_ids
from ddp_conformance.framework.traits import TRAITS
from ddp_conformance.frontend import command_suite
from ddp_conformance.frontend.command_pytest import run_pytest
from ddp_conformance.frontend.command_request import (
    OPTION,
    Request,
    RequestError,
    cells_of,
    described,
    kind_at,
    kinds_at,
)
from ddp_conformance.frontend.explain import explanation
from ddp_conformance.frontend.pytest_frontend import WORLD_SIZES
from ddp_conformance.frontend.report import label
from ddp_conformance.frontend.suggest import WORLD_SIZES as SUGGESTED_FOR
from ddp_conformance.frontend.suggest import suggestion
from ddp_conformance.lifecycle.subjects import Training
from ddp_conformance.plugin import REPORT, Verdicts

PROGRAM = "python -m ddp_conformance"

TIMEOUT = 60.0
"""Seconds for a check at one world size, on a machine that is not busy with others."""
TRAINING_TIMEOUT = 600.0
"""Seconds for a check where a training is among the parts: its runs, some ten for a check,
are bounded by its own ``timeout``, so that a run which hangs is a verdict."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if all guarantees are kept, 1 if one that MUST hold is not or is unknown.

    2 for misuse, 3 if nothing is known, because pytest or one of its plugins failed.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.list or given.explain:
        print("\n".join(explanation(given.explain) if given.explain else _listing()))
        return 0
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        request = _request(given)
        cells_of(request)
    except RequestError as error:
        parser.error(str(error))
    return suggest(request, given) if given.suggest else run(request, given)


class CommandProgress:
    """Shows, from two seconds on, the description that is tried: one line that a terminal renews,
    elsewhere a line for each kind."""

    def __init__(self, checks: int, stream: TextIO) -> None:
        self._checks = checks
        self._stream = stream
        self._began = time.monotonic()
        self._started = 0
        self._kind = ""
        self._doing = "ranks start"
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if stream.isatty():
            # A descriptor of its own, since pytest redirects the stream's while a check runs.
            self._stream = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding)
            self._thread = threading.Thread(target=self._renew, name="progress", daemon=True)
            self._thread.start()

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the check that starts."""
        self._started += 1
        tried = nodeid.partition("[")[2].removesuffix("]")
        self._doing = f"{self._started} of {self._checks}: {tried}"
        kind = tried.partition("(")[0]
        if self._thread is None and kind != self._kind and self._seconds() >= _SILENT:
            self._kind = kind
            self._stream.write(f"{self._started} of {self._checks} checks: as {kind}\n")
            self._stream.flush()

    def end(self) -> None:
        """Clear the line of a terminal."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._stream.write("\r\x1b[K")
            self._stream.close()

    def _renew(self) -> None:
        wait = _SILENT
        while not self._over.wait(wait):
            line = f"{self._seconds():.0f} s, {self._doing}"
            self._stream.write(f"\r\x1b[K{line[:78]}")
            self._stream.flush()
            wait = 1.0

    def _seconds(self) -> float:
        return time.monotonic() - self._began


_SILENT = 2.0
"""Seconds without a line."""


def run(request: Request, given: argparse.Namespace) -> int:
    """Run the checks with pytest; the exit code follows from the verdicts."""
    verdicts = Verdicts(option="--report")
    code = run_pytest([*_pytest_arguments(request, given)], given.plugin, verdicts)
    if code is not None:
        return code
    judged = verdicts.judged.values()
    missing = len(cells_of(request)) - len(judged)
    if missing:
        print(
            f"{missing} of {len(cells_of(request))} checks ended without a verdict; see pytest's "
            "output above",
            file=sys.stderr,
        )
    return 1 if missing or any(one.is_fault for one in judged) else 0


def suggest(request: Request, given: argparse.Namespace) -> int:
    """Print the description that fits; returns 0 if one does, 1 if none does."""
    verdicts, output = Verdicts(), io.StringIO()
    progress = CommandProgress(len(cells_of(request)), sys.stderr)
    try:
        with redirect_stdout(output):
            arguments = [*_pytest_arguments(request, given)]
            code = run_pytest(arguments, given.plugin, verdicts, progress)
    finally:
        progress.end()
    if code is not None:
        print(output.getvalue())
        return code
    fits, lines = suggestion(described(request), list(verdicts.judged.values()))
    print("\n".join(lines))
    return 0 if fits else 1


def _pytest_arguments(request: Request, given: argparse.Namespace) -> Iterator[str]:
    suite = Path(command_suite.__file__)
    yield from (str(suite), f"--rootdir={suite.parent}", "-c", "/dev/null", "--noconftest")
    yield from ("--import-mode=importlib", "-p", "no:cacheprovider")
    yield f"{OPTION}={request.to_json()}"
    if request.checks:
        yield from ("-k", " or ".join(request.checks))  # what is named is skipped, with the reason
    yield from ("-q", "-rN", "--no-header", "--tb=short", "--disable-warnings")
    yield f"--ddp-timeout={given.timeout or _timeout(request):g}"
    yield f"--ddp-backend={given.backend}"
    yield f"{nemesis.OPTION}={given.nemesis_seed}"
    if given.report is not None:
        yield f"{REPORT}={given.report}"


def _timeout(request: Request) -> float:
    trains = any(kind == Training.__name__.lower() for kind, _ in request.subjects)
    return TRAINING_TIMEOUT if trains else TIMEOUT


# ---------------------------------------------------------------- the command line


class _Parser(argparse.ArgumentParser):
    """Prints the error above the usage, which has many lines."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n{self.format_usage()}--help lists the options\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        PROGRAM,
        usage="%(prog)s MODULE:NAME [--as KIND] [OPTIONS]",
        description="Check parts of data-parallel training code against numbered guarantees.",
        epilog="exit code: 0 kept, 1 a guarantee that MUST hold is broken or could not be "
        "decided, 2 wrong arguments, 3 no verdict, because pytest or a plugin failed",
        allow_abbrev=False,
    )
    parser.add_argument("--list", action="store_true", help="show guarantees and traits, and end")
    parser.add_argument(
        *("--explain",), metavar="ID", type=_guarantee,
        help="show a guarantee, a part that breaks it and a part that keeps it, and end",
    )  # fmt: skip
    parser.add_argument(
        "--suggest", action="store_true", help="find a description that fits the part, and end"
    )
    parser.add_argument(
        "places", metavar="MODULE:NAME", nargs="*",
        help="the part to check: a description, such as LOADER = Loader(make_loader), or with --as "
        "a function that makes the part",
    )  # fmt: skip
    parser.add_argument(
        "--as", metavar="KIND", dest="kind", choices=tuple(all_kinds()),
        help=f"the kind of part that the function makes: {', '.join(all_kinds())}",
    )  # fmt: skip
    parser.add_argument(
        *("--trait", "-t"),
        metavar="NAME",
        action="append",
        default=[],
        help="a trait of all parts that are given by their function; may be repeated",
    )
    parser.add_argument(
        *("--check", "-k"), metavar="ID", action="append", default=[], type=_guarantee,
        help="check only this guarantee; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        *("--expect", "-x"), metavar="ID=REASON", action="append", default=[],
        help="a guarantee that is known to be broken, and why; if it is kept, that is an error",
    )  # fmt: skip
    parser.add_argument(
        *("--world-size", "-w"), metavar="N", action="extend", nargs="+", type=_world_size,
        help=f"numbers of ranks (default: {' '.join(map(str, WORLD_SIZES))})",
    )  # fmt: skip
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument(
        *("--timeout",), metavar="SECONDS", type=_seconds,
        help=f"time for one check at one world size (default: {TIMEOUT:g}; of a training "
        f"{TRAINING_TIMEOUT:g})",
    )  # fmt: skip
    parser.add_argument("--report", metavar="FILE", type=_report, help="write all verdicts as JSON")
    parser.add_argument(
        *("--nemesis-seed",), metavar="N", type=_natural, default=0,
        help="the seed of the ranks' delays and random states (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        *("--plugin",), metavar="NAME", action="append", default=[],
        help="load this pytest plugin, as pytest's -p does; other plugins are not loaded",
    )  # fmt: skip
    return parser


def _guarantee(text: str) -> str:
    if text not in known_ids():
        close = difflib.get_close_matches(text.upper(), known_ids(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known_ids())}"
        raise argparse.ArgumentTypeError(f"{text}: there is no such guarantee; {hint}")
    return text


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number; give 0 or more")
    return int(text)


def _world_size(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 64:
        before = "; write MODULE:NAME before --world-size" if ":" in text else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks; give 1 to 64{before}")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds, more than 0")
    return seconds


def _report(text: str) -> Path:
    path = Path(text).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file in a folder "
                                         "that exists")  # fmt: skip
    return path


def _request(given: argparse.Namespace) -> Request:
    if not given.places:
        raise RequestError("nothing to check; give MODULE:NAME, for example my_data:LOADER")
    if given.suggest:
        if len(given.places) > 1:
            raise RequestError("--suggest takes one MODULE:NAME")
        sizes = tuple(dict.fromkeys(given.world_size or SUGGESTED_FOR))
        return Request(kinds_at(given.places[0], given.kind), (), (), (), sizes, suggest=True)
    return Request(
        subjects=tuple((kind_at(place, given.kind), place) for place in given.places),
        traits=tuple(given.trait),
        checks=tuple(given.check),
        expected=tuple(_expectation(text) for text in given.expect),
        world_sizes=tuple(dict.fromkeys(given.world_size or WORLD_SIZES)),
    )


def _expectation(text: str) -> tuple[str, str]:
    guarantee_id, equals, reason = text.partition("=")
    if not equals or not reason.strip():
        raise RequestError(f"--expect {text}: give a reason, as in --expect 'SMP-04=issue 12'")
    return guarantee_id, reason


def _listing() -> Iterator[str]:
    for check in all_checks():
        guarantee = check.guarantee
        kinds = ", ".join(kind.__name__.lower() for kind in check.kinds)
        needs = f"; needs {', '.join(sorted(check.needs))}" if check.needs else ""
        excused = f"; not with {', '.join(sorted(check.excused))}" if check.excused else ""
        yield f"{label(check.id):<8} {guarantee.level:<6} {kinds}{needs}{excused}"
        yield from textwrap.wrap(
            guarantee.statement, 78, initial_indent=" " * 9, subsequent_indent=" " * 9
        )
    yield "\ntraits:"
    width = max(map(len, TRAITS)) + 2
    for name, meaning in TRAITS.items():
        indent = " " * (2 + width)
        yield from textwrap.wrap(
            f"{name:<{width}}{meaning}", 79, initial_indent="  ", subsequent_indent=indent
        )
