"""Records about the terminal, which one rank at a time may have for a debugger.

The other half of :mod:`pytest_ddp.wire.protocol`, which says who sends what.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TakeTerminal:
    """The answer to :class:`WantTerminal`, with standard input, output and error if it is yes."""

    refusal: str | None
    """Why there is no terminal, in a sentence; None with one."""


@dataclass(frozen=True)
class LiftTimeouts:
    """A rank is in a debugger: no process group of another may lose its patience."""


@dataclass(frozen=True)
class EnterHang:
    """Open a debugger on what the main thread is stuck in."""

    test: int


@dataclass(frozen=True)
class WantTerminal:
    """The rank is about to prompt its user, and waits for the terminal."""

    test: int


@dataclass(frozen=True)
class LeaveTerminal:
    """The rank goes on, and gives the terminal back."""

    test: int
    steps: bool
    """It is likely to prompt again in a moment."""
    quits: bool
    """The user wants the session to end."""
