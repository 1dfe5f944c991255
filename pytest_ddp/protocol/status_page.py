"""What a rank is doing, on a page that outlives it.

SIGKILL leaves no stack. The page is a small mapped file: writing a note on it is a copy in memory
without a system call, and the kernel keeps it whatever happens to the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.system.stdlib import mmap, os, zlib

AREA = 2048
"""Bytes of an area: one for the number of the valid slot, and two slots."""
_SLOT = (AREA - 1) // 2
_LENGTH = 2
"""Bytes of the length of the text in a slot."""

PHASE = 0
"""The main thread's area, written at the begin and end of each phase."""
SEEN = 1
"""The area of the thread that answers probes. Each thread has its own area: a lock could be held by
the other thread when the process forks."""
KEPT = 2
"""The area of reports that the rank will send when its test ends
(:mod:`pytest_ddp.protocol.buffered_reports`)."""
IMPORT = "import of the test file"
"""Phase inside of setup that does not count as the test's time."""
_AREAS = (PHASE, SEEN, KEPT)
SIZE = len(_AREAS) * AREA
_BEGINS = tuple((area * AREA + 1, area * AREA + 1 + _SLOT) for area in _AREAS)
"""Begin of the two slots of each area."""


@dataclass(frozen=True)
class StatusNote:
    """The contents of a rank's page."""

    phase: tuple[str, ...] = ()
    """The names of pytest's phase and of those inside of it, outermost first; empty before any."""
    site: CodeLine | None = None
    """The line of user code that began the narrowest phase; None if it is not known."""
    seen: CodeLine | None = None
    """Where a probe has found the main thread in this phase; None if none has."""
    raised: str = ""
    """The exception that came out of pytest's phase: ``ValueError: text``; empty if none did."""
    cut_off: bool = False
    """Whether the rank has found its channel closed, and has ended itself."""


class StatusPage:
    """The page of a rank, for the rank that writes it."""

    def __init__(self, path: str) -> None:
        """Make the file; if that is impossible, notes are lost and no test fails."""
        self._map = _allocate(path)
        self._free = [1] * len(_AREAS)
        # A forked child shares the page, and must not write to its parent's.
        os.register_at_fork(after_in_child=self._detach)

    def write(self, area: int, note: bytes) -> None:
        """Replace the contents of an area by a note, as of :func:`note_of`.

        A process may be killed between any two bytes. So each area has two slots: first the other
        one is filled, then it is declared valid.
        """
        slot = self._free[area]
        begin = _BEGINS[area][slot]
        self._map[begin : begin + len(note)] = note
        self._map[area * AREA] = slot
        self._free[area] = 1 - slot

    def _detach(self) -> None:
        # Not dropped: that would close its descriptor, and the number may be another file's by now.
        self._shared = self._map
        self._map = mmap.mmap(-1, SIZE)


def note_of(phase: Iterable[str], site: CodeLine | None, test: int, raised: str = "") -> bytes:
    """The note for :data:`PHASE`.

    Args:
        phase: the names of pytest's phase and of those inside of it, outermost first.
        site: the line that began the narrowest phase.
        test: the number of the test, which distinguishes otherwise equal notes.
        raised: the exception that came out of pytest's phase.
    """
    return framed(_fields(phase), _fields(_parts(site)), str(test), _fields([raised]))


def seen_note_of(phase: Iterable[str], place: CodeLine | None, note: bytes) -> bytes:
    """The note for :data:`SEEN`.

    Args:
        phase: the names of the phases now; those of ``note`` that have ended may be missing.
        place: where the main thread is.
        note: the note in :data:`PHASE` when the main thread was looked at.
    """
    return framed(_digest(note), _fields(phase), _fields(_parts(place)))


def cut_off() -> bytes:
    """The last note for :data:`SEEN`, from a rank whose channel is closed."""
    return framed("", "", "", "cut off")


_FIELD = "\t"
"""Between the fields of a line of a note."""


def _fields(texts: Iterable[str]) -> str:
    """A line with these fields, each without the characters that separate fields and lines."""
    return _FIELD.join(" ".join(text.split()) for text in texts)


def _parts(line: CodeLine | None) -> tuple[str, ...]:
    return () if line is None else (line.file, str(line.line), line.function)


def _names(fields: str) -> tuple[str, ...]:
    return tuple(fields.split(_FIELD)) if fields else ()


def _code_line(fields: str) -> CodeLine | None:
    """A line of code; None if the note has none, or was too long for it."""
    match fields.split(_FIELD):
        case file, line, *function if file and line.isdecimal():
            return CodeLine(file, int(line), *function)
    return None


def read(path: Path) -> StatusNote:
    """The contents of a page, whether its rank is alive or not."""
    if not (page := _page(path)):
        return StatusNote()
    note = _note(page, PHASE)
    phase, site, _, raised = _texts(note)
    sight = _note(page, SEEN)
    of, now, place, _ = _texts(sight)
    if of == _digest(note):
        # The probe is younger than the note.
        began = _code_line(site) if now == phase else None
        return StatusNote(_names(now), began, _code_line(place), raised)
    return StatusNote(_names(phase), _code_line(site), raised=raised, cut_off=sight == cut_off())


def lines(path: Path, area: int) -> list[str]:
    """The lines of the last note in an area; empty if there is no page."""
    page = _page(path)
    return _lines(_note(page, area)) if page else []


def _page(path: Path) -> bytes:
    """A complete page, or nothing."""
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
    return [*_lines(note), "", "", "", ""][:4]


def _lines(note: bytes) -> list[str]:
    return note[_LENGTH:].decode(errors="replace").split("\n")


def _digest(note: bytes) -> str:
    return f"{zlib.crc32(note):x}"


def framed(*lines: str) -> bytes:
    """A note with these lines, cut to the size of a slot."""
    data = "\n".join(lines).encode(errors="replace")[: _SLOT - _LENGTH]
    return len(data).to_bytes(_LENGTH) + data


def _allocate(path: str) -> mmap.mmap:
    try:
        with open(path, "w+b") as stream:
            # Not a sparse file: on a full disk, the first note would raise SIGBUS.
            os.posix_fallocate(stream.fileno(), 0, SIZE)
            return mmap.mmap(stream.fileno(), SIZE)
    except OSError:
        return mmap.mmap(-1, SIZE)
