"""Points at files: audit events of Python, and wrapped functions where there is no event.

What C++ opens by itself has no event; ``torch.save`` of a path is wrapped for that. An audit hook
stays for the life of the process, so it is added once, and hears nothing between runs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_ddp.extensions.explore.ranks.accesses import Access, Thing, ThingKind
from pytest_ddp.extensions.explore.ranks.paths import Paths, parent, point_name
from pytest_ddp.extensions.explore.ranks.recording import Recording
from pytest_ddp.system.file_events import files_of, follow_looks, opens_to_write
from pytest_ddp.system.stdlib import os

_WRITES = os.O_WRONLY | os.O_RDWR
_LOOKS = frozenset({"exists", "lexists", "isfile", "isdir", "islink", "ismount"})
_LOOKS |= {"is_file", "is_dir", "is_symlink", "exist"}
"""Functions that only test whether there is something."""
_UNLOCK = 8
"""``fcntl.LOCK_UN``."""


class FilePoints:
    """The points at which a rank uses files in one run."""

    def __init__(self, recording: Recording, paths: Paths) -> None:
        self.recording = recording
        self._paths = paths
        self.on_event: Mapping[str, Callable[..., None]] = {
            "open": self._opens,
            "os.remove": self._removes,
            "os.rmdir": self._removes_folder,
            "os.rename": self._renames,
            "os.link": self._links,
            "os.symlink": self._links,
            "os.mkdir": self._makes,
            "os.listdir": self._lists,
            "os.scandir": self._lists,
            "os.truncate": self._truncates,
            "fcntl.flock": self._locks,
            "fcntl.lockf": self._locks,
        }

    # ------------------------------------------------------------------ events

    def on_call(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A call is about to be made."""
        names = [self._paths.name(path, folder) for path, folder in files_of(event, arguments)]
        if any(names):
            self.on_event[event](names, *arguments)

    def _opens(self, names: list[str], path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        is_emptied = isinstance(mode, str) and "w" in mode
        if not isinstance(flags, int):
            flags = os.O_RDWR if opens_to_write(mode, flags) else os.O_RDONLY
        if flags & os.O_DIRECTORY:
            return  # what it lists or removes has events of its own
        name = names[0]
        self._point("open", name, lambda: self._opening(path, name, flags))
        if is_emptied:
            self._writes(path, name)

    def _writes(self, path: Any, name: str) -> None:
        """A file that was opened is there, and empty, until it is written."""

        def uses() -> list[Access]:
            # tempfile gives the folder of a file.
            return [] if os.path.isdir(path) else [_changes(ThingKind.FILE, name, "fills")]

        self._point("write", name, uses, lambda: _make_empty(path))

    def _opening(self, path: Any, name: str, flags: int) -> list[Access]:
        if not flags & _WRITES:
            return [_reads(ThingKind.FILE, name, "reads"), _reads(ThingKind.ENTRY, name, "opens")]
        is_new = flags & os.O_CREAT and not os.path.lexists(path)
        makes = is_new or flags & os.O_EXCL
        entry = _entry(name, "makes") if makes else [_reads(ThingKind.ENTRY, name, "opens")]
        return [_changes(ThingKind.FILE, name, "writes"), *entry]

    def _removes(self, names: list[str], *_: Any) -> None:
        self._point("remove", names[0], lambda: _entry(names[0], "removes"))

    def _removes_folder(self, names: list[str], *_: Any) -> None:
        uses = [*_entry(names[0], "removes"), _reads(ThingKind.FOLDER, names[0], "removes")]
        self._point("rmdir", names[0], lambda: uses)

    def _renames(self, names: list[str], *_: Any) -> None:
        uses = [use for name in names if name for use in _entry(name, "renames")]
        # By its new name: the old one is often made up.
        self._point("rename", names[1] or names[0], lambda: uses)

    def _links(self, names: list[str], *_: Any) -> None:
        self._point("link", names[0], lambda: _entry(names[0], "links"))

    def _makes(self, names: list[str], *_: Any) -> None:
        # The test's own folder each rank makes, and looks for it if another one was faster.
        if names[0] != ".":
            self._point("mkdir", names[0], lambda: _entry(names[0], "makes"))

    def _lists(self, names: list[str], *_: Any) -> None:
        entry = [_reads(ThingKind.ENTRY, names[0], "lists")] if names[0] != "." else []
        uses = [_reads(ThingKind.FOLDER, names[0], "lists"), *entry]
        self._point("list", names[0], lambda: uses)

    def _truncates(self, names: list[str], *_: Any) -> None:
        self._point("truncate", names[0], lambda: [_changes(ThingKind.FILE, names[0], "truncates")])

    def _locks(self, names: list[str], descriptor: int, operation: int, *_: Any) -> None:
        if not operation & _UNLOCK:
            self._point("flock", names[0], lambda: [_changes(ThingKind.LOCK, names[0], "locks")])

    # ------------------------------------------------------------------ wrapped functions

    def looks(self, path: Any, folder: Any, caller: str) -> None:
        """``os.stat`` or ``os.access`` is called."""
        name = self._paths.name(path, folder)
        if name and name != ".":
            uses = [_reads(ThingKind.ENTRY, name, "looks for")]
            if caller not in _LOOKS:
                uses.append(_reads(ThingKind.FILE, name, "looks at"))
            self._point("stat", name, lambda: uses)

    def saves(self, path: Any) -> None:
        """``torch.save`` is called with a path."""
        if name := self._paths.name(path):
            flags = _WRITES | os.O_CREAT | os.O_TRUNC
            self._point("save", name, lambda: self._opening(path, name, flags))
            self._writes(path, name)

    def _point(
        self,
        kind: str,
        name: str,
        uses: Callable[[], list[Access]],
        arrive: Callable[[], None] = lambda: None,
    ) -> None:
        self.recording.point(f"{kind}:{point_name(name)}", uses, arrive=arrive)


def _entry(name: str, verb: str) -> list[Access]:
    return [
        _changes(ThingKind.ENTRY, name, verb),
        _changes(ThingKind.FOLDER, parent(name), verb),
    ]


def _make_empty(path: Any) -> None:
    """Do what the call that follows begins with: the event comes before it."""
    if os.path.isfile(path) or not os.path.lexists(path):
        with contextlib.suppress(OSError):  # it will raise that itself
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))


def _reads(kind: ThingKind, name: str, verb: str) -> Access:
    return Access(Thing(kind, name), changes=False, verb=verb)


def _changes(kind: ThingKind, name: str, verb: str) -> Access:
    return Access(Thing(kind, name), changes=True, verb=verb)


# ------------------------------------------------------------------ the hook and the wrappers

_current: FilePoints | None = None
"""The :class:`FilePoints` of the current run; None between two runs."""
_is_hooked = False


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _current is None or event not in _EVENTS:
        return
    points = _current
    if points is not None and points.recording.own() is not None:
        with points.recording.guarded:  # what a hook raises, the user's call raises
            points.on_call(event, arguments)


_EVENTS = frozenset(
    {
        *("open", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.mkdir"),
        *("os.listdir", "os.scandir", "os.truncate", "fcntl.flock", "fcntl.lockf"),
    }
)


@contextlib.contextmanager
def watching_files(points: FilePoints) -> Iterator[None]:
    """The points of files are those of a run, in the block."""
    global _current, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hear)
        _is_hooked = True
    with contextlib.ExitStack() as undo:
        undo.callback(follow_looks(_looks))
        for module in (torch, torch.serialization):
            undo.enter_context(_replaced(module, "save", _saving))
        _current = points
        try:
            yield
        finally:
            _current = None


@contextlib.contextmanager
def _replaced(module: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(module, name)
    wrapper = wrap(original)
    setattr(module, name, wrapper)
    try:
        yield
    finally:
        if getattr(module, name) is wrapper:
            setattr(module, name, original)


def _looks(path: Any, folder: int | None, caller: str) -> None:
    points = _current
    if points is not None and points.recording.own() is not None:
        with points.recording.guarded:
            points.looks(path, folder, caller)


def _saving(original: Any) -> Any:
    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        points = _current
        if points is not None and isinstance(f, str | os.PathLike):
            with points.recording.guarded:
                points.saves(f)
        return original(obj, f, *args, **kwargs)

    return save
