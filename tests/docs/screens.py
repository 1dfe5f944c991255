"""Pictures of real runs of the pages' examples: a failure as a terminal shows it, and a hang.

``python -m tests.docs.screens`` writes them anew.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pytest_ddp.trace.styles import BASE, PICTURE
from tests.docs.environment import of_a_reader

ROOT = Path(__file__).parents[2]
TERMINAL = ROOT / "docs" / "static" / "deadlock.svg"
HANG = ROOT / "docs" / "static" / "hang.svg"
_EXAMPLE = "test_checkpoint.py"
_CROSSED = "test_crossed.py"
_WIDTH = 88
_PYTEST = (sys.executable, "-W", "ignore", "-m", "pytest")


def draw_hang() -> str:
    """The picture of ``--ddp-trace`` by itself: its lengths are another run's each time."""
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, ROOT / "docs" / "hangs.md", _CROSSED, "--ddp-trace=traces")
        (page,) = Path(folder, "traces").glob(f"{_CROSSED}*.html")
        found = re.search(r"<svg (.*?</svg>)", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    # An image takes neither size nor styles of the page that shows it.
    opening, _, rest = found[1].partition(">")
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', opening)
    assert size is not None
    ground = f'<rect width="{size[1]}" height="{size[2]}" fill="var(--ground)"/>'
    named = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[1]}" height="{size[2]}" {opening}>'
    )
    return f"{named}\n<style>{BASE}{PICTURE}</style>\n{ground}{rest}\n"


def render() -> str:
    """The picture of a terminal as it has to be."""
    shown = f"$ pytest -qq {_EXAMPLE}\n{_printed()}"
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown))
    picture = console.export_svg(title="pytest", unique_id="deadlock")
    # Else a reader's browser would load fonts from another server.
    return re.sub(r"@font-face {.*?}\s*", "", picture, flags=re.DOTALL)


def _printed() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return _run(folder, ROOT / "README.md", _EXAMPLE)


def _run(folder: str, page: Path, name: str, *arguments: str) -> str:
    """What pytest prints in this folder about the failing example of a page."""
    text = page.read_text(encoding="utf-8")
    example = re.search(rf"^```python\n(# {name}\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert example is not None
    Path(folder, name).write_text(example[1], encoding="utf-8")
    # Without the number of seconds, which differs each time.
    options = ("-qq", "-rN", "--color=yes", "-p", "no:cacheprovider", "-c", os.devnull)
    run = subprocess.run(
        [*_PYTEST, *options, f"--rootdir={folder}", *arguments],
        cwd=folder,
        env=of_a_reader() | {"COLUMNS": str(_WIDTH)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout


if __name__ == "__main__":
    TERMINAL.write_text(render(), encoding="utf-8")
    HANG.write_text(draw_hang(), encoding="utf-8")
