"""One line on the terminal that says what the ranks of a long test are doing.

It is written below pytest's own line and erased without a trace. Cursor movements are relative, so
that they are right after the terminal has scrolled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

import pytest

from pytest_ddp.evidence.outcome import Ending
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.system.own import os, time
from pytest_ddp.wire.survey import Standing

_PATIENCE = 5.0
"""Seconds that a test runs before the line is shown."""
_INTERVAL = 1.0
"""Seconds between updates of the line."""
_SHORTEST_NAME = 12
"""Characters of the test's name that are kept where the line is too long."""

_ERASE = "\x1b[K"
"""From the cursor to the end of the line."""
_UP = "\x1b[A"


class Writer(Protocol):
    """The part of pytest's terminal writer that is used here."""

    @property
    def fullwidth(self) -> int: ...
    @property
    def width_of_current_line(self) -> int: ...
    @property
    def _file(self) -> TextIO: ...


def terminal_of(config: pytest.Config) -> Writer | None:
    """The terminal for the line; None where there is to be none.

    That is without a terminal, on one without a cursor, in an xdist worker, and with ``-s`` or
    ``--capture=tee-sys``, where the output of ranks goes to the terminal.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if (
        reporter is None
        or hasattr(config, "workerinput")
        or config.option.capture in ("no", "tee-sys")
    ):
        return None
    if not reporter.isatty or os.environ.get("TERM", "dumb") == "dumb":
        return None
    writer: Writer = config.get_terminal_writer()
    return writer


class LiveLine:
    """The line; one object for all tests of a session."""

    def __init__(self, terminal: Writer | None) -> None:
        self._terminal = terminal
        self._name = ""
        self._began = self._due = math.inf
        self._column: int | None = None
        """The column in which pytest's own line ended; None while ours is not shown."""

    def begin(self, name: str) -> None:
        """A test begins."""
        self._name = name
        self._began = time.monotonic()
        self._due = self._began + _PATIENCE if self._terminal is not None else math.inf

    def due_in(self) -> float:
        """Seconds until the line is to be written; infinite if never."""
        return max(0.0, self._due - time.monotonic())

    def show(self, doing: Mapping[int, str]) -> None:
        """Write the line, if it is due.

        Args:
            doing: what each rank does, as words that follow "rank 3".
        """
        now = time.monotonic()
        if self._terminal is None or now < self._due:
            return
        self._due = now + _INTERVAL
        if self._column is None:
            self._column = self._terminal.width_of_current_line
            self._write("\n")
        text = line(self._name, now - self._began, doing, self._terminal.fullwidth - 1)
        self._write(f"\r{text}{_ERASE}")

    def give_way(self) -> None:
        """Erase the line before other output; it is shown again below that."""
        self._erase()

    def erase(self) -> None:
        """The test is over: erase the line and move the cursor back to pytest's own line."""
        self._due = math.inf
        self._erase()

    def _erase(self) -> None:
        if self._column is None:
            return
        right = f"\x1b[{self._column}C" if self._column else ""
        self._write(f"\r{_ERASE}{_UP}{right}")
        self._column = None

    def _write(self, text: str) -> None:
        # Not with the writer's own method, which would count the columns as pytest's line.
        assert self._terminal is not None
        self._terminal._file.write(text)
        self._terminal._file.flush()


def line(name: str, seconds: float, doing: Mapping[int, str], width: int) -> str:
    """``ddp: test_x 12 s | rank 0 in all_reduce #7, ranks 1-3 in forward``, cut to the width."""
    by_words: dict[str, list[int]] = {}
    for rank, words in doing.items():
        by_words.setdefault(words, []).append(rank)
    ranks = ", ".join(f"{ranks_text(ranks)} {words}" for words, ranks in by_words.items())
    rest = f" {seconds:.0f} s | {ranks}"
    # A name may have characters that move the cursor or are two columns wide.
    name = name.encode("unicode_escape").decode()
    room = max(width - len("ddp: ") - len(rest), _SHORTEST_NAME)
    return _cut(f"ddp: {_cut(name, room)}{_plain(rest)}", width)


def doing_of(ending: Ending | None, status: Standing | None) -> str:
    """What a rank does, as words that follow "rank 3"."""
    if ending is not None:
        return _ENDINGS[ending]
    if status is None:
        return "does not answer"
    if status.blocked and status.waits:
        wait = status.waits[0]
        return f"in {wait.operation} #{wait.number}"
    _, colon, narrower = status.phase.partition(": ")
    if colon:
        return f"in {narrower}"
    place = status.place.partition(" in ")[0]
    return f"at {os.path.basename(place)}" if place else f"in {status.phase or 'setup'}"


_ENDINGS = {
    Ending.DONE: "ended",
    Ending.EXITED: "died",
    Ending.ANNOUNCED: "died as announced",
    Ending.STOPPED: "stopped",
    Ending.NOT_BEGUN: "not begun",
}


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."[:width]
