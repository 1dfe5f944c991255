"""Which phase of its test a rank is in: pytest's, the user's, and those of torch.

The main thread keeps a stack of phases, each with the line that began it, and mirrors the
innermost one on the rank's page (:mod:`pytest_ddp.rank.marker`). Phases of other threads
are not followed: a page has room for one story.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

from pytest_ddp.rank.journal import user_frame
from pytest_ddp.rank.marker import PHASE, SEEN, Page, note_of, sight_of


class Anchor(NamedTuple):
    """A frame that is on the stack for as long as a phase lasts.

    For phases that something announces and nothing ends for certain: an optimizer's hook
    after the step is not called when the step raised. The frame itself is not kept, for it
    would keep alive whatever it refers to.
    """

    frame: int
    """``id`` of the frame."""
    code: CodeType
    instruction: int
    """The one that the frame is at while the phase lasts; -1 for any."""

    @classmethod
    def at_call(cls, frame: FrameType) -> Anchor:
        """The call that the frame is making now."""
        return cls(id(frame), frame.f_code, frame.f_lasti)

    @classmethod
    def within(cls, frame: FrameType) -> Anchor:
        """All that the frame does until it returns."""
        return cls(id(frame), frame.f_code, -1)

    def holds(self, frame: FrameType | None) -> bool:
        """Whether the anchor is ``frame`` or one of its callers."""
        while frame is not None:
            if id(frame) == self.frame and frame.f_code is self.code:
                return self.instruction in (-1, frame.f_lasti)
            frame = frame.f_back
        return False


class _Open(NamedTuple):
    """A phase that has begun."""

    name: str
    outer: bool
    """Told also when a narrower phase has begun inside."""
    anchor: Anchor | None
    note: bytes
    text: str


class Lifecycle:
    """The phases that the rank's main thread is in."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._thread = threading.main_thread().ident
        self._open: list[_Open] = []
        self._test = 0
        self.begin("")

    def begin(self, phase: str) -> None:
        """Begin a phase of pytest; whatever was open before is over."""
        self._test += 1
        self._open = [_Open(phase, True, None, note_of(phase, "", self._test), phase)]
        self._page.write(PHASE, self._open[0].note)

    def look(self, frame: FrameType | None, place: str) -> str:
        """Note where a probe finds the main thread; called in the thread that answers probes.

        Returns:
            the phase that it is in: ``call: warm-up: backward``.
        """
        stack = list(self._open)
        note = stack[-1].note
        while (anchor := stack[-1].anchor) is not None and not anchor.holds(frame):
            stack.pop()
        self._page.write(SEEN, sight_of(stack[-1].text, place, note))
        return stack[-1].text

    # ------------------------------------------------------------------ narrower phases

    def enter(
        self, name: str, *, outer: bool = False, anchor: Anchor | None = None, site: str = ""
    ) -> int:
        """Begin a phase.

        Args:
            name: what it is called.
            outer: show it also while a narrower phase is on.
            anchor: ends it without :meth:`leave`.
            site: where it lies, if not at the line of the user's code that is running.

        Returns:
            what :meth:`leave` needs to know.
        """
        if threading.get_ident() != self._thread:
            return 0
        frame = sys._getframe(1)
        self._drop_ended(frame)
        outside = [open_.name for open_ in self._open if open_.outer]
        text = ": ".join(filter(None, (*outside, name)))
        note = note_of(text, site or place_of(frame), self._test)
        self._open.append(_Open(name, outer, anchor, note, text))
        self._page.write(PHASE, note)
        return len(self._open) - 1

    def leave(self, depth: int) -> None:
        """End the phase that :meth:`enter` began, and those inside that nobody has ended."""
        if 0 < depth < len(self._open) and threading.get_ident() == self._thread:
            del self._open[depth:]
            self._page.write(PHASE, self._open[-1].note)

    def leave_anchored(self, frame: FrameType) -> None:
        """End the phase that is anchored in this frame, if there is one."""
        anchor = Anchor.within(frame)
        for depth in range(len(self._open) - 1, 0, -1):
            if self._open[depth].anchor == anchor:
                self.leave(depth)
                return

    @contextlib.contextmanager
    def phase(self, name: str, *, outer: bool = False, site: str = "") -> Iterator[None]:
        """A phase for the length of a ``with`` block."""
        depth = self.enter(name, outer=outer, site=site)
        try:
            yield
        finally:
            self.leave(depth)

    @property
    def in_torch(self) -> bool:
        """True inside a phase that is neither pytest's nor the user's."""
        if threading.get_ident() == self._thread:
            self._drop_ended(sys._getframe(1))
        return not self._open[-1].outer

    def refresh(self) -> None:
        """Correct the page where an anchored phase has ended unnoticed; main thread only."""
        if self._drop_ended(sys._getframe(1)):
            self._page.write(PHASE, self._open[-1].note)

    def _drop_ended(self, frame: FrameType) -> bool:
        ended = False
        while (anchor := self._open[-1].anchor) is not None and not anchor.holds(frame):
            self._open.pop()
            ended = True
        return ended


def place_of(frame: FrameType | None) -> str:
    """The innermost line of the user's code, as ``file:line in function``."""
    found = user_frame(frame)
    if found is None:
        return ""
    return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"
