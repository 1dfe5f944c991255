"""The debugger of an editor, pydevd: PyCharm's own, and debugpy's, which is VS Code's."""

from __future__ import annotations

import sys
from typing import Any


def is_attached() -> bool:
    """Whether an editor debugs this process now: it may hold it for as long as its user thinks."""
    find: Any = getattr(sys.modules.get("pydevd"), "get_global_debugger", None)
    debugger = None if find is None else find()
    if debugger is None:
        return False
    # PyCharm's has no such method, and is never without an editor.
    return bool(getattr(debugger, "is_attached", lambda: True)())
