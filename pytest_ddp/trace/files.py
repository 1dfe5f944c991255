"""What ``--ddp-trace`` writes, and under which names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddp.evidence.outcome import RunOutcome
from pytest_ddp.system.own import json
from pytest_ddp.trace.chrome import chrome_trace
from pytest_ddp.trace.page import page
from pytest_ddp.trace.timeline import make_timeline

_LONGEST = 100
"""Characters of a test's name in a file's: file systems allow 255 bytes."""


def write(directory: Path, outcome: RunOutcome, reports: Sequence[pytest.TestReport]) -> None:
    """Write the trace of a test, and its page if it failed.

    Raises:
        OSError: the files cannot be written.
    """
    timeline = make_timeline(outcome, reports)
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / stem_of(outcome.nodeid)
    trace = json.dumps(chrome_trace(timeline), separators=(",", ":"))
    Path(f"{stem}.json").write_text(trace, encoding="ascii")
    if timeline.failed:
        Path(f"{stem}.html").write_text(page(timeline), encoding="utf-8", errors="replace")


def stem_of(nodeid: str) -> str:
    """A name without ending that any file system takes, and that no other test has."""
    digest = hashlib.sha256(nodeid.encode(errors="surrogatepass")).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9.=-]+", "_", nodeid).strip("._-")
    return "-".join(filter(None, (plain[-_LONGEST:].lstrip("._-"), digest)))
