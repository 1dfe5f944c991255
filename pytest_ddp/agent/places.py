"""Paths of node 0's rootdir, and of the copy of it that this machine has: one told for the other.

What a host is told has this machine's paths; what goes home has node 0's, so that failures, proofs
and reports read as on one machine. Texts of tests stay as they are: an assert about a path must not
be shown with two that are alike.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from pytest_ddp.machines.line import Frame, Kind
from pytest_ddp.machines.mirror import FILES
from pytest_ddp.machines.shipping import Told
from pytest_ddp.system.own import base64, json
from pytest_ddp.wire import marker
from pytest_ddp.wire.channel import is_a
from pytest_ddp.wire.hosting import Collected, Session, StartRank
from pytest_ddp.wire.protocol import Message, RunTest

_INWARD: tuple[type[Message], ...] = (Session, Collected, StartRank, RunTest)
"""Messages that tell a host or rank of files; what ranks exchange is told as it is."""
_WHOLE = frozenset({"nodeid", "location", "keywords", "problem", "filename"})
"""Fields without a text of a test's in them: parameters in a node id may be paths."""
_KEPT = frozenset({"sections", "payload", "message"})
_END = r"(?=/|$|[^\w.-])"
"""Where the name of a folder is over."""
_PAGE, _TRACE = 2, 3
"""Parts of file frames: a rank's page, and what it writes for ``--ddp-trace``."""


class Places:
    """Two places of one tree."""

    def __init__(self, told: Told, there: str) -> None:
        """Take them.

        Args:
            told: node 0's.
            there: the rootdir's copy on this machine.
        """
        self._home, self.there = told.rootdir, there
        roots = {told.rootdir, told.real}
        self._inward = re.compile(_whole(roots, told.kept))
        self._outward = re.compile(rf"{re.escape(there)}{_END}")
        self._quoted = re.compile(f'(?<=File "){re.escape(there)}(?=/)')

    # ------------------------------------------------------------------ paths

    def here(self, text: str) -> str:
        """A text with paths of node 0's rootdir, with those of the copy."""
        return self._inward.sub(lambda _: self.there, text)

    def home(self, text: str) -> str:
        """The way back."""
        return self._outward.sub(lambda _: self._home, text)

    def _home_if_path(self, text: str) -> str:
        """The way back where the text begins with the path, or a stack's line names it."""
        if self.there not in text:
            return text
        if (match := self._outward.match(text)) is not None:
            return self._home + text[match.end() :]
        return self._quoted.sub(lambda _: self._home, text)

    # ------------------------------------------------------------------ frames

    def inward(self, frame: Frame) -> Frame:
        """A frame of the hub's, as the agent is to read it."""
        match frame.kind:
            case Kind.MESSAGE if any(is_a(kind, frame.data) for kind in _INWARD):
                return self._with(frame, self._told_here(json.loads(frame.data)))
            case Kind.FILES:
                return self._with(frame, _walk(json.loads(frame.data), self.here))
            case _:
                return frame

    def outward(self, frame: Frame) -> Frame:
        """A frame of the agent's, as the hub is to read it."""
        match frame.kind:
            case Kind.MESSAGE if _in_json(self.there) in frame.data:
                return self._with(frame, self._told_home(json.loads(frame.data)))
            case Kind.PROBLEM:
                return Frame(frame.kind, data=self.home(frame.data.decode()).encode())
            case Kind.FILE if frame.part == _PAGE:
                page = marker.changed(frame.data, self._home_if_path)
                return Frame(frame.kind, frame.serial, frame.part, page)
            case Kind.FILE if frame.part < FILES:
                written = _in_json if frame.part == _TRACE else _in_stacks
                there, home = (b'"' + written(path) + b"/" for path in (self.there, self._home))
                data = frame.data.replace(there, home)
                return Frame(frame.kind, frame.serial, frame.part, data)
            case _:
                return frame

    @staticmethod
    def _with(frame: Frame, body: Any) -> Frame:
        data = json.dumps(body, separators=(",", ":")).encode()
        return Frame(frame.kind, frame.serial, frame.part, data)

    def _told_here(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = _walk(body, self.here)
        if (measured := found.get("measured")) is not None:
            config = json.loads(base64.b64decode(measured["config"]))
            changed = json.dumps(_walk(config, self.here)).encode()
            measured["config"] = base64.b64encode(changed).decode()
        if found["kind"] == "Session":
            # A stray pytest.ini above the copy would make another rootdir.
            found["args"] = [f"--rootdir={self.there}", *found["args"]]
        return found

    def _told_home(self, value: Any) -> Any:
        match value:
            case dict():
                return {key: self._field_home(key, inner) for key, inner in value.items()}
            case list():
                return [self._told_home(inner) for inner in value]
            case str():
                return self._home_if_path(value)
            case _:
                return value

    def _field_home(self, name: str, value: Any) -> Any:
        if name in _WHOLE:
            return _walk(value, self.home)
        return value if name in _KEPT else self._told_home(value)


def _whole(roots: Iterable[str], kept: Iterable[str]) -> str:
    """A pattern for the roots where they stand as paths, alone or with what lies below them.

    Not in the middle of a longer path or name, and not where they lead to something that is kept.
    """
    longest_first = sorted(map(re.escape, roots), key=len, reverse=True)
    others = "".join(rf"(?!{re.escape(place)}{_END})" for place in kept)
    # Behind an option of one letter, as in -cpytest.ini, it stands as well.
    before = r"(?:(?<![\w./~])|(?<=^-[A-Za-z])|(?<=\s-[A-Za-z]))"
    return rf"{before}{others}(?:{'|'.join(longest_first)}){_END}"


@functools.cache
def _in_json(path: str) -> bytes:
    return json.dumps(path)[1:-1].encode()


@functools.cache
def _in_stacks(path: str) -> bytes:
    """As faulthandler writes it."""
    return path.encode("ascii", "backslashreplace")


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON with all its strings changed, also names of fields."""
    match value:
        case dict():
            return {change(name): _walk(inner, change) for name, inner in value.items()}
        case list():
            return [_walk(inner, change) for inner in value]
        case str():
            return change(value)
        case _:
            return value
