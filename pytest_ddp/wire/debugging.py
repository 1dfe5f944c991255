"""Records about the terminal, which one rank at a time can have for a debugger.

A part of :mod:`pytest_ddp.wire.protocol`, which lists their senders.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TakeTerminal:
    """The answer to :class:`WantTerminal`, with standard input, output and error if granted."""

    refusal: str | None
    """Why the terminal is refused, in a sentence; None if it is granted."""


@dataclass(frozen=True)
class LiftTimeouts:
    """A rank is in a debugger: lift the timeouts of all process groups."""


@dataclass(frozen=True)
class EnterHang:
    """Open a debugger at the place where the main thread is stuck."""

    test: int


@dataclass(frozen=True)
class WantTerminal:
    """The rank is about to show a prompt, and waits for the terminal."""

    test: int


@dataclass(frozen=True)
class LeaveTerminal:
    """The rank goes on, and returns the terminal."""

    test: int
    steps: bool
    """It is likely to prompt again at once."""
    quits: bool
    """The user wants the session to end."""
