"""Whether this system can run ranks; imports no module that other systems lack."""

from __future__ import annotations

import sys

from pytest_ddp.system.stdlib import os

_NEEDED = ("memfd_create", "pidfd_open", "setsid")


def problem() -> str:
    """Why no rank can be started here; empty if ranks can be."""
    missing = next((f" without {name}" for name in _NEEDED if not hasattr(os, name)), "")
    if sys.platform == "linux" and not missing:
        return ""
    return f"ranks need Linux 5.3 or newer, this is {sys.platform}{missing}"
