"""Reports what the ranks of a test were doing when Ctrl-C, or the end of a CI job, interrupted it.

Often that test is the reason. pytest itself shows the line at which its own process was
interrupted, which is a line of the plugin for a ddp test.
"""

from __future__ import annotations

import contextlib

import pytest

from pytest_ddp.attempt.run import Run
from pytest_ddp.evidence.outcome import Expiry
from pytest_ddp.verdict.table import rows_of

INTERRUPTED = pytest.StashKey[str]()
"""In pytest's configuration: the text for the end of the session."""


def look_back(item: pytest.Item, run: Run) -> None:
    """Keep for the end of the session what the ranks do now; takes 0.1 s, at most 2 s."""
    # No error here may hide the interrupt.
    with contextlib.suppress(Exception):
        item.config.stash[INTERRUPTED] = told(item.nodeid, *run.look())


def told(nodeid: str, seconds: float, look: Expiry) -> str:
    """The test, and a row for each of its ranks."""
    return "\n".join([f"{nodeid} was interrupted after {seconds:.1f} s", *rows_of(look.table)])
