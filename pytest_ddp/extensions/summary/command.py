"""``python -m pytest_ddp summary PATH…``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ddp.extensions.summary.markdown import render
from pytest_ddp.extensions.summary.results import read

HELP = "print results as Markdown, for a CI job's page"
_EPILOG = """Exit code: 0, also if tests failed (pytest's own exit code reports that); 1 if a file
could not be read, or there is no JUnit file; 2 for wrong arguments."""


def main(arguments: list[str]) -> int:
    """Print the summary; return the exit code."""
    options = _parser().parse_args(arguments)
    results = read(options.paths)
    # CI systems read UTF-8, whatever the locale of the job.
    sys.stdout.buffer.write(render(results, options.title).encode())
    for unread in results.unread:
        print(f"error: {unread}", file=sys.stderr)
    return 1 if results.unread else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ddp summary",
        description="Print the results of pytest as Markdown, for the page of a CI job: "
        "python -m pytest_ddp summary reports >> $GITHUB_STEP_SUMMARY",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="+",
        help="a file of --junitxml, one of --ddp-diagnosis, or a folder that holds such files",
    )
    parser.add_argument("--title", default="Tests", help="the heading (default: %(default)s)")
    return parser
