"""An editor's debugger, pydevd: PyCharm's own, and VS Code's, which is in debugpy."""

from __future__ import annotations

import sys
from typing import Any


def is_attached() -> bool:
    """Whether an editor debugs this process now, which may stop it for any length of time."""
    find: Any = getattr(sys.modules.get("pydevd"), "get_global_debugger", None)
    debugger = None if find is None else find()
    if debugger is None:
        return False
    # PyCharm's has no such method, and runs only while an editor is attached.
    return bool(getattr(debugger, "is_attached", lambda: True)())
