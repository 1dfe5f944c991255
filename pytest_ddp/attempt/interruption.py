"""Where the ranks of a test stood that Ctrl-C, or the end of a CI job, has cut off.

Often that test is the reason. pytest itself tells the line at which its own process was
interrupted, which for a ddp test is a line of the plugin.
"""

from __future__ import annotations

import contextlib

import pytest

from pytest_ddp.attempt.run import Run
from pytest_ddp.evidence.outcome import Expiry
from pytest_ddp.verdict.table import rows_of

INTERRUPTED = pytest.StashKey[str]()
"""In pytest's configuration: what is told at the end of the session."""


def look_back(item: pytest.Item, run: Run) -> None:
    """Keep for the end of the session where the ranks stand now; takes 0.1 s, at most two."""
    # Nothing that goes wrong here may stand in the way of the interrupt.
    with contextlib.suppress(Exception):
        item.config.stash[INTERRUPTED] = told(item.nodeid, *run.look())


def told(nodeid: str, seconds: float, look: Expiry) -> str:
    """The test, and a row for each of its ranks."""
    return "\n".join([f"{nodeid} was interrupted after {seconds:.1f} s", *rows_of(look.table)])
