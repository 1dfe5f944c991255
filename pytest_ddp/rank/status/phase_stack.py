"""The phase of its test that a rank is in: pytest's, the user's, and those of torch.

The main thread keeps a stack of phases, each with the line that began it, and writes the innermost
one to the rank's page (:mod:`pytest_ddp.protocol.status_page`). Phases of other threads are not
recorded: a page has room for one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from sys import _getframe
from types import CodeType, FrameType
from typing import NamedTuple

from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.protocol.status_page import PHASE, SEEN, StatusPage, note_of, seen_note_of
from pytest_ddp.rank.operations.origins import callers, stack_of, user_frame, user_frame_of
from pytest_ddp.system.stdlib import threading

BACKWARD = "backward"
"""Name of the phase in which autograd computes gradients."""


class Anchor(NamedTuple):
    """A frame that is on the stack for as long as a phase lasts.

    For phases with a reliable begin but no reliable end: an optimizer's hook after the step is not
    called if the step raised. The frame itself is not kept, as it would keep alive all that it
    refers to.
    """

    frame: int
    """``id`` of the frame."""
    code: CodeType
    instruction: int
    """The instruction that the frame is at while the phase lasts; -1 for any."""

    @classmethod
    def at_call(cls, frame: FrameType) -> Anchor:
        """An anchor for the call that the frame is making now."""
        return cls(id(frame), frame.f_code, frame.f_lasti)

    @classmethod
    def within(cls, frame: FrameType) -> Anchor:
        """An anchor for all that the frame does until it returns."""
        return cls(id(frame), frame.f_code, -1)

    def holds(self, stack: Iterable[FrameType]) -> bool:
        """Whether the anchored frame is in this stack, at the anchored instruction."""
        for frame in stack:
            if id(frame) == self.frame and frame.f_code is self.code:
                return self.instruction in (-1, frame.f_lasti)
        return False


class _Phase(NamedTuple):
    """A phase; reused when it begins again at the same line inside the same outer phases."""

    name: str
    names: tuple[str, ...]
    """The names of the outer phases and this one: ``call``, ``warm-up``, ``backward``."""
    outer: bool
    """True if the name is shown even inside a narrower phase: pytest's and the user's."""
    note: bytes


class PhaseStack:
    """The phases that the rank's main thread is in."""

    def __init__(self, page: StatusPage) -> None:
        self._page = page
        self._thread = threading.main_thread().ident
        self._known: dict[tuple[tuple[str, ...], str, str, int], _Phase] = {}
        """This test's phases, by the names of the outer ones, name, file and line: composing a note
        each time would cost more than all the rest."""
        self._test = 0
        self.torch_phases = 0
        """How many phases of torch have begun: models built, wrapped, compiled or trained."""
        self.backwards = 0
        """How many backward passes have begun, in the life of the rank."""
        self.begin("")

    def begin(self, phase: str, site: CodeLine | None = None) -> None:
        """Begin a phase of pytest, which ends all open ones.

        Args:
            phase: ``setup``, ``call`` or ``teardown``; empty for the time between tests.
            site: the line of the test; all that is known if the rank is killed before anything in
                the test begins a narrower phase.
        """
        self._test += 1
        self._known.clear()
        names = (phase,) if phase else ()
        note = note_of(names, site, self._test)
        self._open: list[tuple[_Phase, Anchor | None]] = [(_Phase(phase, names, True, note), None)]
        self._page.write(PHASE, note)

    def note_exception(self, error: Exception, site: CodeLine | None) -> None:
        """Note the exception that came out of pytest's phase.

        The process may end before pytest has made its report: NCCL's watchdog ends it some 100 ms
        after an error of CUDA.

        Args:
            error: the exception.
            site: the line of the test.
        """
        message = message_of(error)
        text = f"{kind_of(error)}: {message}" if message else kind_of(error)
        self._page.write(PHASE, note_of(self._open[0][0].names, site, self._test, text))

    def look(self) -> tuple[tuple[str, ...], CodeLine | None, list[FrameType]]:
        """Write where a probe finds the main thread; called in the thread that answers probes.

        Returns:
            the names of the main thread's phases, its line of user code, and its stack.
        """
        # Copied before the stack is read: that lacks the anchors of phases that end in between.
        phases = list(self._open)
        stack = stack_of(self._thread)
        place = place_of(stack)
        note = phases[-1][0].note
        # A phase whose anchor is no longer on the stack has ended without leave().
        while (anchor := phases[-1][1]) is not None and not anchor.holds(stack):
            phases.pop()
        names = phases[-1][0].names
        self._page.write(SEEN, seen_note_of(names, place, note))
        return names, place, stack

    # ------------------------------------------------------------------ narrower phases

    def enter(
        self,
        name: str,
        *,
        outer: bool = False,
        anchor: Anchor | None = None,
        at: FrameType | None = None,
    ) -> int:
        """Begin a phase.

        Args:
            name: its name, for readers.
            outer: show the name also while a narrower phase is open.
            anchor: ends the phase without :meth:`leave`.
            at: frame from which to look outwards for the user's line; default is the caller's.

        Returns:
            the argument for :meth:`leave`.
        """
        if threading.get_ident() != self._thread:
            return 0
        caller = _getframe(1)
        self._drop_ended(caller)
        line = user_frame(at or caller) or caller
        return self._push(name, outer, anchor, line.f_code, line.f_lineno)

    def enter_function(self, name: str, code: CodeType) -> int:
        """Begin a phase that is a call of a user's function, such as a fixture."""
        if threading.get_ident() != self._thread:
            return 0
        self._drop_ended(_getframe(1))
        return self._push(name, True, None, code, code.co_firstlineno)

    def leave(self, depth: int) -> None:
        """End the phase that began at ``depth``, and those that are still open inside it."""
        if 0 < depth < len(self._open) and threading.get_ident() == self._thread:
            del self._open[depth:]
            self._page.write(PHASE, self._open[-1][0].note)

    def leave_anchored(self, frame: FrameType) -> None:
        """End the phase that is anchored in this frame, if any."""
        if threading.get_ident() != self._thread:
            return
        anchor = Anchor.within(frame)
        for depth in range(len(self._open) - 1, 0, -1):
            if self._open[depth][1] == anchor:
                self.leave(depth)
                return

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The user's own phase, which lasts for a ``with`` block."""
        depth = self.enter(name, outer=True)
        try:
            yield
        finally:
            self.leave(depth)

    def in_backward(self) -> bool:
        """True while the main thread is in a backward pass, and not in a user's phase of that name;
        for any thread."""
        phase = self._open[-1][0]
        return not phase.outer and phase.name == BACKWARD

    def in_torch(self) -> bool:
        """True inside a phase of torch, and on any thread but the main one."""
        if threading.get_ident() != self._thread:
            return True
        self._drop_ended(_getframe(1))
        return not self._open[-1][0].outer

    # ------------------------------------------------------------------ the stack

    def _push(
        self, name: str, outer: bool, anchor: Anchor | None, code: CodeType, line: int
    ) -> int:
        self.torch_phases += not outer
        self.backwards += name == BACKWARD
        around = -1
        while not self._open[around][0].outer:
            around -= 1
        key = (self._open[around][0].names, name, code.co_filename, line)
        phase = self._known.get(key)
        if phase is None:
            names = (*key[0], name)
            site = CodeLine(code.co_filename, line, code.co_name)
            phase = self._known[key] = _Phase(name, names, outer, note_of(names, site, self._test))
        self._open.append((phase, anchor))
        self._page.write(PHASE, phase.note)
        return len(self._open) - 1

    def _drop_ended(self, frame: FrameType) -> None:
        while (anchor := self._open[-1][1]) is not None and not anchor.holds(callers(frame)):
            self._open.pop()


def place_of(stack: Iterable[FrameType]) -> CodeLine | None:
    """The innermost line of user code; None for a stack without frames."""
    found = user_frame_of(stack)
    if found is None:
        return None
    return CodeLine(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)


# ------------------------------------------------------------------ exceptions in words


_LONGEST_TEXT, _LONGEST_MESSAGE = 10_000, 120
"""Characters of an exception's text that are read, and that are reported."""


def kind_of(error: BaseException) -> str:
    """``ValueError``; with its module, if that is not ``builtins``."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """The first line of an exception's text, cut; empty if it has none."""
    # str() runs user code, which may raise anything.
    with contextlib.suppress(BaseException):
        lines = (line.strip() for line in str(error)[:_LONGEST_TEXT].splitlines())
        return next(filter(None, lines), "")[:_LONGEST_MESSAGE]
    return ""
