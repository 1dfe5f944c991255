"""The threads of the host that prevent a fork, which would not have them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, threading

_HARMLESS = ("jemalloc_bg_thd",)
"""Names as the kernel has them. jemalloc (in pyarrow, and so in pandas 3) takes its locks before a
fork and renews them in the child, which frees memory without that thread."""
_TASKS = Path("/proc/self/task")


def problem(where: str) -> str | None:
    """Why this process, which has imported torch, must not be forked; None if it may.

    Args:
        where: the name of this process in the text.
    """
    torch: Any = sys.modules["torch"]
    for name, accelerator in (("CUDA", torch.cuda), ("XPU", torch.xpu)):
        if accelerator.is_initialized():
            return f"{name} is initialised in {where}"
    if others := hindering():
        return f"threads run in {where} ({'; '.join(others)})"
    return None


def hindering() -> list[str]:
    """Names of all threads but the calling one and harmless ones."""
    if _count() == 1:
        return []
    # A new native thread sets its name before it first sleeps.
    processes.wait_for_sleep()
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    own = threading.get_native_id()
    others = (int(task) for task in os.listdir(_TASKS) if int(task) != own)
    return [known.get(task) or _described(task) for task in others if not _is_harmless(task, known)]


def _count() -> int:
    # The link count of a folder: two for itself, and one for each folder in it.
    return _TASKS.stat().st_nlink - 2


def _is_harmless(task: int, known: dict[int | None, str]) -> bool:
    """Whether a thread has a harmless name and sleeps as it should: names are not protected."""
    if task in known or _read(task, "comm") not in _HARMLESS:
        return False
    return _place(task) == "" or _place(task).startswith("futex")


def _place(task: int) -> str:
    """The kernel's function that the thread sleeps in; empty where the kernel hides it."""
    return _read(task, "wchan").removeprefix("0")


def _described(task: int) -> str:
    place = f" in {_place(task)}" if _place(task) else ""
    return f"{_read(task, 'comm')}, a native one{place}"


def _read(task: int, file: str) -> str:
    with contextlib.suppress(OSError):  # the thread has ended, or the kernel hides it
        return (_TASKS / str(task) / file).read_text().strip()
    return ""
