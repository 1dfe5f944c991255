"""What Python code does to files, by audit events; and looks at files, which raise none."""

from __future__ import annotations

import functools
import os as public_os
from collections.abc import Callable
from pathlib import Path
from sys import _getframe
from typing import Any, TypeAlias

from pytest_ddp.system.stdlib import os

Given: TypeAlias = tuple[Any, int | None]
"""A file as it is given: a path or a descriptor, and the descriptor of the folder to which the path
is relative."""

_FILES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "open": ((0, None),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "shutil.rmtree": ((0, 1),),
    "os.truncate": ((0, None),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.mkdir": ((0, 2),),
    "os.utime": ((0, 3),),
    "os.listdir": ((0, None),),
    "os.scandir": ((0, None),),
    "fcntl.flock": ((0, None),),
    "fcntl.lockf": ((0, None),),
}
"""Which arguments of an event are files, and which the folders of these."""


def files_of(event: str, arguments: tuple[Any, ...]) -> list[Given]:
    """The files that a call opens, changes, makes, lists or locks; empty for another event.

    Of a link it is the new name, of a renaming both.
    """
    return [
        (
            "." if arguments[file] is None else arguments[file],
            arguments[folder] if folder is not None and folder < len(arguments) else None,
        )
        for file, folder in _FILES.get(event, ())
    ]


def opens_to_write(mode: Any, flags: Any) -> bool:
    """Whether a file is opened to be written, by the arguments of the audit event ``open``."""
    if isinstance(flags, int):
        return bool(flags & (os.O_WRONLY | os.O_RDWR))
    return bool(set(str(mode)) & set("wax+"))


def full_path(path: Any, folder: int | None = None) -> str | None:
    """The absolute path of a file; None if it has none.

    Args:
        path: as functions of ``os`` take it, a descriptor among them.
        folder: descriptor of the folder to which it is relative; None or -1 for the current one.
    """
    try:
        is_open = isinstance(path, int)
        text = os.readlink(f"/proc/self/fd/{path}") if is_open else os.fsdecode(path)
        if not text.startswith("/"):
            is_relative = folder is not None and folder >= 0
            base = os.readlink(f"/proc/self/fd/{folder}") if is_relative else os.getcwd()
            text = f"{base}/{text}"
    except (OSError, TypeError, ValueError):
        return None
    is_plain = not ("." in text or "//" in text or text.endswith("/"))
    return text if is_plain else os.path.normpath(text)


Look: TypeAlias = Callable[[Any, int | None, str], None]
"""Called with a path, the descriptor of its folder, and the name of the function that looks."""

_LOOKS = ("stat", "lstat", "access")
"""Functions of ``os`` that look at a file, also for ``os.path`` and ``pathlib``."""

_KINDS = ("supports_follow_symlinks", "supports_dir_fd", "supports_fd", "supports_effective_ids")
"""Sets in ``os``, in which ``shutil`` looks for what a function can do."""


def follow_looks(before: Look) -> Callable[[], None]:
    """Have ``before`` called before each look at a file; returns the function that ends this."""
    undo = [_replaced(name, before) for name in _LOOKS]

    def end() -> None:
        for one in undo:
            one()

    return end


def _caller() -> str:
    """The name of the function that looks: two calls up, or that which has called ``Path.stat``."""
    frame: Any = _getframe(2)
    asks_by_stat = frame.f_code is getattr(Path.stat, "__code__", None)
    name: str = (frame.f_back if asks_by_stat else frame).f_code.co_name
    return name


def _replaced(name: str, before: Look) -> Callable[[], None]:
    original = getattr(public_os, name)

    @functools.wraps(original)
    def look(path: Any, *args: Any, **kwargs: Any) -> Any:
        before(path, kwargs.get("dir_fd"), _caller())
        return original(path, *args, **kwargs)

    known: list[set[Any]] = [getattr(public_os, kind) for kind in _KINDS]
    sets = [one for one in known if original in one]
    for one in sets:
        one.add(look)
    setattr(public_os, name, look)

    def end() -> None:
        if getattr(public_os, name) is look:
            setattr(public_os, name, original)
        for one in sets:
            one.discard(look)

    return end
