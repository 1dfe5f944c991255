"""``python -m pytest_ddp explain``: prints what a code in a failure text means."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator

from pytest_ddp.system.stdlib import shutil
from pytest_ddp.verdict.codes import Entry, by_code

HELP = "explain a code of a failure text, such as DDP-001"
_WIDEST = 100
"""Columns; longer lines are hard to read."""


def main(arguments: list[str]) -> int:
    """Print the entries of codes, or the list of all codes; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ddp explain",
        description="Explain codes of failure texts; without one, list them all.",
    )
    parser.add_argument("codes", metavar="CODE", nargs="*", help="a code, as DDP-001 or 1")
    given = [_normalised(code) for code in parser.parse_args(arguments).codes]
    known = by_code()
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    if not given:
        print("\n".join(f"{code}  {entry.title}" for code, entry in known.items()))
        print("\npython -m pytest_ddp explain CODE prints causes and fixes.")
    if pages := ["\n".join(_page(known[code], width)) for code in given if code in known]:
        print("\n\n".join(pages))
    unknown = [code for code in given if code not in known]
    for code in unknown:
        print(f"error: there is no code {code}; near it are", file=sys.stderr)
        for other in _near(code):
            print(f"  {other}  {known[other].title}", file=sys.stderr)
    return 2 if unknown else 0


def _normalised(code: str) -> str:
    digits = code.upper().removeprefix("DDP").lstrip("-")
    return f"DDP-{digits.zfill(3)}" if digits.isdecimal() else code.upper()


def _near(code: str) -> list[str]:
    """Codes that a wrong one may have been meant for: codes of like kinds have near numbers."""
    digits = "".join(filter(str.isdecimal, code))
    wanted = int(digits or 0)
    nearest = sorted(by_code(), key=lambda each: abs(int(each.removeprefix("DDP-")) - wanted))
    return sorted(nearest[:5])


def _page(entry: Entry, width: int) -> Iterator[str]:
    yield f"{entry.code}: {entry.title}"
    yield ""
    yield textwrap.fill(entry.meaning, width)
    for title, lines in (
        ("Error texts", entry.texts),
        ("Likely causes", entry.causes),
        ("What to do", entry.fixes),
    ):
        yield f"\n{title}:"
        for line in lines:
            yield textwrap.fill(
                line, width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
            )
