"""What a rank is doing, on a page that outlives it.

SIGKILL leaves no stack. The page is a small file that is mapped: a note on it is a copy
in memory without a system call, and the kernel keeps it whatever becomes of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.system.own import mmap, os, zlib

AREA = 2048
_SLOT = (AREA - 1) // 2
_LENGTH = 2
"""Bytes of the number that says how long the text in a slot is."""

PHASE = 0
"""The area that the main thread writes, at each begin and end of a phase."""
SEEN = 1
"""The area of the thread that answers probes. Each has an area of its own, for a lock could
be held by the other one when the process forks."""
KEPT = 2
"""The area of what the rank will tell at the end of its test, by :mod:`pytest_ddp.wire.kept`."""
IMPORT = "import of the test file"
"""A phase inside of setup, whose time is not the test's."""
_AREAS = (PHASE, SEEN, KEPT)
SIZE = len(_AREAS) * AREA
_BEGINS = tuple((area * AREA + 1, area * AREA + 1 + _SLOT) for area in _AREAS)
"""Where the two slots of each area begin."""


@dataclass(frozen=True)
class Mark:
    """What a page says."""

    phase: str = ""
    """``call: DDP construction``: pytest's phase, then the narrower ones; empty before any."""
    site: str = ""
    """``file:line in function`` of the user's code that began the narrowest phase."""
    seen: str = ""
    """The same for where a probe has found the main thread since then; empty if none has."""
    cut_off: bool = False
    """Whether the rank has found its channel closed, and has ended itself."""


class Page:
    """The writing side."""

    def __init__(self, path: str) -> None:
        """Make the file; where that is impossible, the notes go nowhere and no test fails."""
        self._map = _allocate(path)
        self._free = [1] * len(_AREAS)
        # A forked child shares the page, and must not speak for its parent.
        os.register_at_fork(after_in_child=self._turn_away)

    def write(self, area: int, note: bytes) -> None:
        """Replace what an area says by a note, as of :func:`note_of`.

        A process may be killed between any two bytes, so each area has two slots: the
        other one is filled first, and then declared the valid one.
        """
        slot = self._free[area]
        begin = _BEGINS[area][slot]
        self._map[begin : begin + len(note)] = note
        self._map[area * AREA] = slot
        self._free[area] = 1 - slot

    def _turn_away(self) -> None:
        # Dropping the map would close its descriptor, whose number may be another's by now.
        self._shared = self._map
        self._map = mmap.mmap(-1, SIZE)


def note_of(phase: str, site: str, test: int) -> bytes:
    """The note for :data:`PHASE`; the number of the test tells like notes apart."""
    return framed(_one_line(phase), _one_line(site), str(test))


def sight_of(phase: str, place: str, note: bytes) -> bytes:
    """The note for :data:`SEEN`.

    Args:
        phase: the phase as it is now, which may have narrower ones less than ``note``.
        place: ``file:line in function`` where the main thread is.
        note: what :data:`PHASE` said when the main thread was looked at.
    """
    return framed(_digest(note), _one_line(phase), _one_line(place))


def cut_off() -> bytes:
    """The last note for :data:`SEEN`, of a rank whose channel is closed."""
    return framed("", "", "", "cut off")


def read(path: Path) -> Mark:
    """What the rank that writes this page has said last, whether it lives or not."""
    if not (page := _page(path)):
        return Mark()
    note = _note(page, PHASE)
    phase, site = _texts(note)[:2]
    sight = _note(page, SEEN)
    of, now, place = _texts(sight)
    if of == _digest(note):
        # The look at the main thread is younger than the note.
        return Mark(now, site if now == phase else "", place)
    return Mark(phase, site, cut_off=sight == cut_off())


def lines(path: Path, area: int) -> list[str]:
    """The lines of the last note in an area; none if there is no page."""
    page = _page(path)
    return _lines(_note(page, area)) if page else []


def _page(path: Path) -> bytes:
    """A whole page, or nothing."""
    try:
        page = path.read_bytes()
    except OSError:
        return b""
    return page if len(page) == SIZE else b""


def _note(page: bytes, area: int) -> bytes:
    begin = _BEGINS[area][page[area * AREA] & 1]
    end = begin + _LENGTH + int.from_bytes(page[begin : begin + _LENGTH])
    return page[begin:end]


def _texts(note: bytes) -> list[str]:
    return [*_lines(note), "", "", ""][:3]


def _lines(note: bytes) -> list[str]:
    return note[_LENGTH:].decode(errors="replace").split("\n")


def _digest(note: bytes) -> str:
    return f"{zlib.crc32(note):x}"


def framed(*lines: str) -> bytes:
    """A note of these lines, cut to what a slot holds."""
    data = "\n".join(lines).encode(errors="replace")[: _SLOT - _LENGTH]
    return len(data).to_bytes(_LENGTH) + data


def _allocate(path: str) -> mmap.mmap:
    try:
        with open(path, "w+b") as stream:
            # A hole that a full disk cannot fill would be a SIGBUS at the first note.
            os.posix_fallocate(stream.fileno(), 0, SIZE)
            return mmap.mmap(stream.fileno(), SIZE)
    except OSError:
        return mmap.mmap(-1, SIZE)


def _one_line(text: str) -> str:
    return " ".join(text.split())
