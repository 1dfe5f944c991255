"""Which threads of the host stand in the way of a fork, which takes none of them along."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from pytest_ddp.system import forks
from pytest_ddp.system.own import os, threading

_HARMLESS = ("jemalloc_bg_thd",)
"""As the kernel has the names. jemalloc (in pyarrow, and so in pandas 3) takes its locks before a
fork and renews them in the child, which gives memory back without that thread."""
_TASKS = Path("/proc/self/task")


def problem(where: str) -> str | None:
    """Why a process that has imported torch must not be forked, in words; None if it may.

    Args:
        where: what this process is called.
    """
    torch: Any = sys.modules["torch"]
    for name, accelerator in (("CUDA", torch.cuda), ("XPU", torch.xpu)):
        if accelerator.is_initialized():
            return f"{name} is initialised in {where}"
    if others := hindering():
        return f"threads run in {where} ({'; '.join(others)})"
    return None


def hindering() -> list[str]:
    """All threads but the calling one and harmless ones, in words."""
    if _count() == 1:
        return []
    # A new thread gives itself its name before it sleeps.
    forks.wait_for_sleep()
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    own = threading.get_native_id()
    others = (int(task) for task in os.listdir(_TASKS) if int(task) != own)
    return [known.get(task) or _described(task) for task in others if not _is_harmless(task, known)]


def _count() -> int:
    # Links of a folder: its own two, and one for each folder in it.
    return _TASKS.stat().st_nlink - 2


def _is_harmless(task: int, known: dict[int | None, str]) -> bool:
    """Whether it has such a name and waits as such a thread does: anybody can take a name."""
    if task in known or _read(task, "comm") not in _HARMLESS:
        return False
    return _place(task) == "" or _place(task).startswith("futex")


def _place(task: int) -> str:
    """The kernel's function that it sleeps in; empty where the kernel does not tell."""
    return _read(task, "wchan").removeprefix("0")


def _described(task: int) -> str:
    place = f" in {_place(task)}" if _place(task) else ""
    return f"{_read(task, 'comm')}, a native one{place}"


def _read(task: int, file: str) -> str:
    with contextlib.suppress(OSError):  # it has ended, or the kernel does not tell
        return (_TASKS / str(task) / file).read_text().strip()
    return ""
