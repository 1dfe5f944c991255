"""Writes the files of ``--ddp-trace``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddp.outcome.outcome import RunOutcome
from pytest_ddp.system.stdlib import json
from pytest_ddp.trace.chrome import chrome_trace
from pytest_ddp.trace.picture import embedded, index, page
from pytest_ddp.trace.timeline import make_timeline

_LONGEST = 100
"""Characters of a test's name in a file name: file systems allow 255 bytes."""


def write(
    directory: Path, outcome: RunOutcome, reports: Sequence[pytest.TestReport]
) -> Path | None:
    """Write the trace of a test, and its page if it failed.

    Returns:
        the path of the page; None if the test passed.

    Raises:
        OSError: the files cannot be written.
    """
    timeline = make_timeline(outcome, reports)
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / stem_of(outcome.nodeid)
    trace = json.dumps(chrome_trace(timeline), separators=(",", ":"))
    Path(f"{stem}.json").write_text(trace, encoding="ascii")
    picture = Path(f"{stem}.html")
    if not timeline.failed:
        picture.unlink(missing_ok=True)
        return None
    picture.write_text(page(timeline), encoding="utf-8", errors="replace")
    return picture


def embedded_picture(directory: Path, nodeid: str, *, first: bool) -> str:
    """The picture of a failed test as a part of another page; empty if it cannot be read.

    Args:
        directory: that of ``--ddp-trace``.
        nodeid: of the test.
        first: whether it is the first picture on that page.
    """
    try:
        text = Path(f"{directory / stem_of(nodeid)}.html").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    return embedded(text, first=first)


def write_index(directory: Path) -> None:
    """List all pages and traces of the folder in its ``index.html``.

    Raises:
        OSError: it cannot be written.
    """
    pages = [path for path in sorted(directory.glob("*.html")) if path.name != INDEX]
    traces = sorted(directory.glob("*.json"))
    if pages or traces:
        heads = {path.name: _head(path) for path in pages}
        text = index(heads, [path.name for path in traces])
        (directory / INDEX).write_text(text, encoding="utf-8", errors="replace")


def _head(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_HEAD)


INDEX = "index.html"
_HEAD = 1 << 16
"""Characters of a page with its title and its verdict; pictures have megabytes."""


def stem_of(nodeid: str) -> str:
    """A file name without its ending, valid on any file system and unique to the test."""
    digest = hashlib.sha256(nodeid.encode(errors="surrogatepass")).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9.=-]+", "_", nodeid).strip("._-")
    return "-".join(filter(None, (plain[-_LONGEST:].lstrip("._-"), digest)))
