"""Colour and width for the texts of failed ddp tests, on a terminal.

Applied just before the terminal's summary, when all other consumers have had the reports: xdist and
junitxml get the plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative
from _pytest._io import TerminalWriter

from pytest_ddp.system.stdlib import os
from pytest_ddp.verdict.representation import WIDE, WIDTH

_COLOURS = {
    "red": ("died", "exited", "failed", "not begun"),
    "yellow": ("waits", "runs", "stopped"),
    "green": ("passed", "ended"),
}
_COLOUR_OF = {state: colour for colour, states in _COLOURS.items() for state in states}
_ROW = re.compile(rf"(rank \d+ +)({'|'.join(_COLOUR_OF)})(?=  |$)")
"""A row of the ranks' table."""


_WIDEST = 160
"""Columns at most: longer lines are hard to read."""


def width_of(config: pytest.Config) -> int:
    """Columns for the texts: those of the terminal, or the value of ``COLUMNS``."""
    if (of_main := getattr(config, "workerinput", {}).get("ddp_width")) is not None:
        return int(of_main)
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    if terminal is None or any(map(os.environ.get, ("CI", "BUILD_NUMBER"))):
        return WIDTH
    return min(max(WIDTH, config.get_terminal_writer().fullwidth), _WIDEST)


def paint(reports: Iterable[pytest.TestReport]) -> None:
    """Let pytest show the failed ddp tests of ``reports`` in colour, as wide as the terminal."""
    for report in reports:
        if "ddp" in report.keywords and report.failed:
            traceback = getattr(report.longrepr, "reprtraceback", None)
            entries = getattr(traceback, "reprentries", [])
            wide = getattr(report, WIDE, None) or [None] * len(entries)
            for number, entry in enumerate(entries):
                if type(entry) is ReprEntryNative:
                    entries[number] = _Painted(wide[number] or entry.lines, number == 0)


@dataclass(eq=False)
class _Painted(ReprEntryNative):
    has_verdict: bool
    """Whether it begins with the verdict."""

    def toterminal(self, tw: TerminalWriter) -> None:
        in_verdict = self.has_verdict
        for line in self.lines:
            in_verdict = in_verdict and bool(line.strip())
            _write(tw, line.rstrip("\n"), in_verdict)
            tw.line()


def _write(tw: TerminalWriter, line: str, in_verdict: bool) -> None:
    row = _ROW.match(line)
    if row is not None:
        tw.write(row[1])
        tw.write(row[2], bold=True, **{_COLOUR_OF[row[2]]: True})
        tw.write(line[row.end() :])
    elif in_verdict:
        tw.write(line, bold=True, red=True)
    else:
        tw.write(line, bold=line.startswith("> "))
