"""Files that are there whole or not at all, whenever another process reads them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_ddp.system.stdlib import os


def write_whole(path: Path, text: str) -> None:
    """Write a file, or replace it at once; its folder is made.

    Raises:
        OSError: it cannot be written. What was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # Texts of tests may have surrogates, of which no file can be written.
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
