"""The rootdir's files as another machine gets them: unpacked into the agent's folder.

They are asked for part by part, so that nothing waits for long behind them. A thread unpacks them,
for the agent has to give signs of life meanwhile, and a disk may be slow.
"""

from __future__ import annotations

import errno
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from pytest_ddp.agent.places import Places
from pytest_ddp.machines import likeness
from pytest_ddp.machines.line import Frame, Kind, Line
from pytest_ddp.machines.shipping import METADATA, TREE, Told
from pytest_ddp.system.folder import Folder
from pytest_ddp.system.own import json, os, queue, selectors, threading

_FOLDER = "shipped"
_AHEAD = 4
"""Parts that are asked for at a time, where a round trip is long."""
_WAY_OUT = ". TMPDIR there names another place for them"


class Shipped:
    """Nothing, until the hub announces files; on node 0 it does not."""

    def __init__(self, line: Line, folder: Folder, selector: selectors.BaseSelector) -> None:
        self._line, self._folder, self._selector = line, folder, selector
        self._told: Told | None = None
        self._places: Places | None = None
        """Once all is there."""
        self._stream = _Stream()
        self._problem = ""
        self._asked_for = 0
        self._thread: threading.Thread | None = None

    @property
    def home(self) -> Callable[[str], str] | None:
        """What makes node 0's path of one of the copy; None where there is no copy."""
        return None if self._places is None else self._places.home

    def take(self, frame: Frame) -> None:
        """Take what the hub sends of it."""
        if frame.kind is Kind.SHIPMENT:
            self._begin(Told(**json.loads(frame.data)))
        else:
            self._stream.put(frame.data)
            if frame.data:
                self._ask()

    def _begin(self, told: Told) -> None:
        self._told = told
        if not self._folder.path:
            self._refuse("there is no temporary directory")
            return
        self._root = os.path.join(os.path.realpath(self._folder.path), _FOLDER)
        self._tree = os.path.join(self._root, TREE, os.path.basename(told.rootdir))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, self._end)
        self._thread = threading.Thread(target=self._unpack, daemon=True)
        self._thread.start()
        for _ in range(_AHEAD):
            self._ask()

    def _ask(self) -> None:
        self._line.send(Frame(Kind.CHUNK, part=self._asked_for))
        self._asked_for += 1

    def _unpack(self) -> None:
        try:
            os.makedirs(self._tree)
            # A cast, since all that tarfile needs of a stream is that it can be read.
            stream = cast("IO[bytes]", self._stream)
            with tarfile.open(fileobj=stream, mode="r|gz") as tar:
                for member in tar:
                    inner = member.name.removeprefix(f"{TREE}/")
                    folder = self._tree if inner != member.name else self._root
                    tar.extract(member.replace(name=inner), folder, filter="data")
            self._link_to_outside()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._problem = f"{error}{_WAY_OUT if full else ''}"
        except Exception as error:  # all of it is told on node 0
            self._problem = repr(error)
        os.eventfd_write(self._wake, 1)

    def _link_to_outside(self) -> None:
        """Make the links that lead out of the tree: last, so that nothing is written by them."""
        assert self._told is not None
        for path, target in self._told.links.items():
            link = os.path.join(self._tree, path)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(target, link)

    def _end(self) -> None:
        """All is there, or will not be."""
        assert self._told is not None
        self._close_wake()
        if not self._problem:
            try:
                self._enter(self._told)
            except OSError as error:
                self._problem = str(error)
        if self._problem:
            self._refuse(self._problem)

    def _refuse(self, why: str) -> None:
        words = f"cannot keep the files of --ddp-ship: {why}"
        self._line.send(Frame(Kind.PROBLEM, data=words.encode()))

    def _enter(self, told: Told) -> None:
        """Be on this machine where pytest is on node 0, and tell so."""
        self._places = places = Places(told, self._tree)
        folder = os.path.join(self._tree, told.folder) if told.folder else self._tree
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        for name, text in list(os.environ.items()):
            if (changed := places.here(text)) != text:
                os.environ[name] = changed
        os.environ["PWD"] = folder
        sys.path[:] = self._import_path(told, places)
        self._line.inward, self._line.outward = places.inward, places.outward
        self._line.send(Frame(Kind.SHIPMENT))

    def _import_path(self, told: Told, places: Places) -> list[str]:
        """``sys.path`` with the copy's folders where node 0 has its own, or before installed
        packages: a machine may have an older copy there of what is edited on node 0."""
        first, then = (list(map(places.here, path)) for path in (told.first, told.then))
        then.append(os.path.join(self._root, METADATA))
        own = [entry for entry in map(places.here, sys.path) if entry not in (*first, *then)]
        library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
        library |= {os.path.join(entry, "lib-dynload") for entry in library}
        known = [number for number, entry in enumerate(own, start=1) if entry in library]
        border = max(known, default=0)
        return [*first, *own[:border], *then, *own[border:]]

    # ------------------------------------------------------------------ later

    def other_file(self, expected: Mapping[str, str]) -> str:
        """The first test file that is not here as expected, in words; empty if all are."""
        other = likeness.other_file(expected)
        if not other or self._places is None:
            return other
        known = (file for file, digest in expected.items() if digest)
        missing = [file for file in known if not os.path.exists(file)]
        outside = [file for file in missing if not file.startswith(self._places.there + "/")]
        if outside:
            rest = "outside of the rootdir, of which alone --ddp-ship sends the files"
            return f"{', '.join(outside)} is {rest}"
        if missing:
            rest = "was not sent by --ddp-ship: git ignores it, or it was written since"
            return f"{', '.join(missing)} {rest}"
        return f"{other}: it was changed there after --ddp-ship had sent it"

    def stop(self) -> None:
        """Write nothing any more: the folder will be removed."""
        if self._thread is not None:
            self._stream.stop()
            self._thread.join()

    def _close_wake(self) -> None:
        self._selector.unregister(self._wake)
        os.close(self._wake)


class _Stream:
    """What has come of the archive, for the thread that unpacks it."""

    def __init__(self) -> None:
        self._parts: Any = queue.SimpleQueue()
        self._rest = b""
        self._is_over = False
        self._is_stopped = False

    def put(self, data: bytes) -> None:
        """Give a part; an empty one is behind the last."""
        self._parts.put(data)

    def stop(self) -> None:
        """Have it end soon, whatever is missing."""
        self._is_stopped = True
        self._parts.put(b"")

    def read(self, size: int) -> bytes:
        """As of a file: fewer bytes than that are the last."""
        while len(self._rest) < size and not self._is_over:
            part = self._parts.get()
            self._is_over = not part
            self._rest += part
        if self._is_stopped:
            raise OSError("the session has ended")
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
