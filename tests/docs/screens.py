"""The picture of a failure as a terminal shows it, made of a real run of the README's example.

``python -m tests.docs.screens`` writes it anew.
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

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "static" / "deadlock.svg"
_EXAMPLE = "test_checkpoint.py"
_WIDTH = 88


def render() -> str:
    """The picture as it has to be."""
    shown = f"$ pytest -qq {_EXAMPLE}\n{_printed()}"
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown))
    picture = console.export_svg(title="pytest", unique_id="deadlock")
    # Else a reader's browser would load fonts from another server.
    return re.sub(r"@font-face {.*?}\s*", "", picture, flags=re.DOTALL)


def _printed() -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(rf"^```python\n(# {_EXAMPLE}\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert example is not None
    # Without the number of seconds, which differs each time.
    options = ("-qq", "-rN", "--color=yes", "-p", "no:cacheprovider", "-c", os.devnull)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, _EXAMPLE).write_text(example[1], encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "pytest", *options, f"--rootdir={folder}"],
            cwd=folder,
            env=variables | {"COLUMNS": str(_WIDTH)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout


if __name__ == "__main__":
    PICTURE.write_text(render(), encoding="utf-8")
