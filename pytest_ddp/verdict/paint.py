"""Colour and width for the texts of failed ddp tests, on a terminal.

Applied just before the terminal's summary, when all other consumers have had the reports: xdist and
junitxml get the plain text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative
from _pytest._io import TerminalWriter

from pytest_ddp.system.stdlib import os
from pytest_ddp.verdict.representation import MARKS, WIDE, WIDTH

_COLOURS = {
    "red": ("died", "exited", "failed", "not begun"),
    "yellow": ("waits", "runs", "stopped"),
    "green": ("passed", "ended"),
}
_COLOUR_OF = {state: colour for colour, states in _COLOURS.items() for state in states}

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
            marks: dict[int, dict[int, tuple[int, str]]] = {}
            for number, line, at, state in getattr(report, MARKS, ()):
                marks.setdefault(number, {})[line] = at, state
            for number, entry in enumerate(entries):
                if type(entry) is ReprEntryNative:
                    lines = wide[number] or entry.lines
                    entries[number] = _Painted(lines, number == 0, marks.get(number, {}))


@dataclass(eq=False)
class _Painted(ReprEntryNative):
    has_verdict: bool
    """Whether the entry begins with the verdict."""
    marks: dict[int, tuple[int, str]]
    """The column and the state that is marked there, by line; an empty state for a whole line."""

    def toterminal(self, tw: TerminalWriter) -> None:
        in_verdict = self.has_verdict
        for number, line in enumerate(self.lines):
            in_verdict = in_verdict and bool(line.strip())
            _write(tw, line.rstrip("\n"), in_verdict, self.marks.get(number))
            tw.line()


def _write(tw: TerminalWriter, line: str, in_verdict: bool, mark: tuple[int, str] | None) -> None:
    if mark is not None and mark[1] in _COLOUR_OF:
        at, state = mark
        tw.write(line[:at])
        tw.write(state, bold=True, **{_COLOUR_OF[state]: True})
        tw.write(line[at + len(state) :])
    elif in_verdict:
        tw.write(line, bold=True, red=True)
    else:
        tw.write(line, bold=mark is not None and not mark[1])
