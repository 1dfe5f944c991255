"""pdb in a rank: pytest's own, with the terminal of the pytest process for each prompt."""

from __future__ import annotations

import contextlib
import pdb  # noqa: T100
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from _pytest.config import create_terminal_writer
from _pytest.debugging import PdbTrace, _postmortem_exc_or_tb, post_mortem, pytestPDB
from torch.distributed.distributed_c10d import _set_pg_timeout

from pytest_ddp import fixture
from pytest_ddp.fixture import DdpError
from pytest_ddp.rank.birth.session import DEBUG
from pytest_ddp.rank.groups.default import groups
from pytest_ddp.rank.groups.journal import Journal
from pytest_ddp.system import editors
from pytest_ddp.system.own import os, threading

_LONG = timedelta(days=1)
_AWAY = "it is not in a test: the pytest process does not listen"


class Place(NamedTuple):
    """Which rank this is."""

    rank: int
    world_size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


class Ask(NamedTuple):
    """The link's part: ask for the terminal, and give it back."""

    want: Callable[[], tuple[str | None, list[int]]]
    """A refusal, or the descriptors of standard input, output and error."""
    leave: Callable[[bool, bool], None]
    """Whether the user makes a step, and whether they want the session to end."""


class Debugger:
    """A pytest plugin that has pytest's pdb, and all that leads to it, ask for the terminal."""

    def __init__(
        self, config: pytest.Config, journal: Journal, ask: Ask, place: Place, history: str
    ) -> None:
        """
        Args:
            config: of the rank's session.
            journal: learns of groups that are made.
            ask: how to get the terminal.
            place: for the prompt.
            history: file for the lines that users enter on any rank; empty for none.
        """
        self._config = config
        self._captured = _Captured(config.pluginmanager.getplugin("capturemanager"))
        self._ask, self._place = ask, place
        self._asked = config.stash[DEBUG]
        self._terminal = _Descriptors()
        self._history = history
        self._in_test = self._holds = self._continued = False
        self._peers_wait = False
        """In torch.distributed.breakpoint, for the first word of the user's here."""
        self._lifts = False
        self._timeouts: list[tuple[Any, timedelta]] = []
        journal.greeters.append(self._greet)
        self._skipped: dict[tuple[str, int], int] = {}
        _make_pdb_ask(self)
        dist.breakpoint = self._breakpoint
        if self._asked.rank not in (None, place.rank):
            pytest.set_trace = pdb.set_trace = _pass_by
        if self._asked.trace and place.rank == (self._asked.rank or 0):
            config.pluginmanager.register(PdbTrace(), "pdbtrace")

    def begin(self) -> None:
        """A test begins."""
        self._in_test = True
        if editors.is_attached():
            self.lift_timeouts()

    def end(self) -> None:
        """The test is over, whatever the user does."""
        self._in_test = False
        if self._holds:
            self.leave(quits=False)
        self._terminal.give_up()
        self._captured.is_suspended = False
        for group, timeout in self._timeouts:
            with contextlib.suppress(RuntimeError, ValueError):  # the test has destroyed it
                _set_pg_timeout(timeout, group)
        self._timeouts.clear()
        self._lifts = False

    # ------------------------------------------------------------------ the terminal

    def take(self) -> None:
        """Have the terminal, which other ranks may have to give up first.

        Raises:
            DdpError: there is none.
        """
        if self._holds:
            return
        self._captured.suspend()
        refusal, descriptors = self._ask.want() if self._in_test else (_AWAY, [])
        if refusal is not None:
            self._captured.resume()
            raise DdpError(f"{self._place} cannot open a debugger: {refusal}")
        self._terminal.put_in_place(descriptors)
        self.lift_timeouts()
        self._holds, self._continued = True, False

    def leave(self, *, quits: bool) -> None:
        """The user has had a word, and the rank goes on."""
        if not self._holds:
            return
        self._holds = False
        self._keep_history()
        _flush()
        if self._continued:
            self._terminal.give_up()
        self._ask.leave(not (quits or self._continued), quits)
        if self._peers_wait and not quits:
            self._peers_wait = False
            fixture.current().barrier()

    def lift_timeouts(self) -> None:
        """Have no group of this rank lose its patience, until the end of the test."""
        self._lifts = True
        known = [group for group, _ in self._timeouts]
        for group in groups():
            if group not in known:
                self._lift(group)

    def _greet(self, group: Any) -> None:
        if self._lifts:
            self._lift(group)

    def _lift(self, group: Any) -> None:
        with contextlib.suppress(AttributeError, RuntimeError):  # a backend without a timeout
            backend = group._get_backend(group._device_types[0])
            self._timeouts.append((group, backend.options._timeout))
            _set_pg_timeout(_LONG, group)

    @contextlib.contextmanager
    def prompting(self) -> Iterator[None]:
        """Have the terminal for as long as a prompt is there."""
        self.take()
        try:
            yield
        except pytest.exit.Exception:
            self.leave(quits=True)
            raise
        finally:
            self.leave(quits=False)

    # ------------------------------------------------------------------ ways to a prompt

    def pytest_enter_pdb(self, pdb: Any) -> None:
        pdb.prompt = f"{self._place} {getattr(pdb, 'prompt', '(Pdb) ')}"
        # Keys that send signals mean the rank at its prompts alone.
        pdb.nosigint = True
        if self._history:
            with contextlib.suppress(ImportError, OSError):
                import readline  # noqa: PLC0415 - it writes to the terminal

                readline.clear_history()
                readline.read_history_file(self._history)

    def _keep_history(self) -> None:
        if self._history and "readline" in sys.modules:
            with contextlib.suppress(OSError):
                sys.modules["readline"].write_history_file(self._history)

    def pytest_leave_pdb(self) -> None:
        self._continued, self._captured.is_suspended = True, False

    def pytest_exception_interact(
        self, call: pytest.CallInfo[Any], report: pytest.TestReport
    ) -> None:
        if not self._asked.post_mortem or not self._in_test:
            return
        try:
            self.take()
        except DdpError:
            return  # the controller says so, once for all ranks
        assert call.excinfo is not None
        with self.prompting():
            self._show(report)
            post_mortem(_postmortem_exc_or_tb(call.excinfo))

    def _show(self, report: pytest.TestReport) -> None:
        writer = create_terminal_writer(self._config)
        writer.line()
        for name, content in report.sections:
            writer.sep(">", name)
            writer.line(content.removesuffix("\n"))
        writer.sep(">", f"traceback of {self._place}")
        report.toterminal(writer)
        writer.sep(">", f"entering PDB in {self._place}")
        _flush()

    def enter_hang(self) -> None:
        """Let the user look, from a thread beside it, at what the main thread is stuck in."""
        main = threading.main_thread().ident
        frame = _own_of_user(sys._current_frames()[main])  # type: ignore[index]
        with contextlib.suppress(pytest.exit.Exception), self.prompting():
            debugger = _new_pdb("of a hang")
            debugger.reset()
            debugger.interaction(frame, None)
            if debugger.quitting:
                pytest.exit("Quitting debugger")

    def _breakpoint(self, rank: int = 0, skip: int = 0, timeout_s: int | None = 3600) -> None:
        """torch.distributed.breakpoint; the others wait outside of any process group."""
        frame = sys._getframe(1)
        if skip > self._count(frame) - 1:
            return
        if self._place.rank != rank:
            fixture.current().barrier()
            return
        self._peers_wait = True
        _new_pdb("torch.distributed.breakpoint").set_trace(frame)

    def _count(self, frame: FrameType) -> int:
        key = frame.f_code.co_filename, frame.f_lineno
        self._skipped[key] = self._skipped.get(key, 0) + 1
        return self._skipped[key]


class _Captured:
    """pytest's capture, which is suspended once from the first prompt to the user's ``c``.

    Suspended twice under ``capsys``, as pytest's pdb does after us, pytest 9.2 has ``sys.stdout``
    lead into its own file.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.is_suspended = False
        if manager is not None:
            self._suspend = manager.suspend
            manager.suspend = lambda in_=False: self.suspend()

    def suspend(self) -> None:
        if self._manager is not None and not self.is_suspended:
            self._suspend(in_=True)
        self.is_suspended = True

    def resume(self) -> None:
        if self._manager is not None:
            self._manager.resume()
        self.is_suspended = False


def _new_pdb(method: str) -> Any:
    pytest_pdb: Any = pytestPDB
    return pytest_pdb._init_pdb(method)


def _make_pdb_ask(debugger: Debugger) -> None:
    """Have pytest's pdb ask before its header and before each prompt."""
    pytest_pdb: Any = pytestPDB
    init, wrapper_class = pytest_pdb._init_pdb, pytest_pdb._get_pdb_wrapper_class

    def init_pdb(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        debugger.take()
        return init(*args, **kwargs)

    def rank_pdb_class(pdb_class: type[Any], capture: Any) -> type[Any]:
        class RankPdb(wrapper_class(pdb_class, capture)):  # type: ignore[misc]
            def interaction(self, *args: Any, **kwargs: Any) -> None:
                with debugger.prompting():
                    super().interaction(*args, **kwargs)

        return RankPdb

    pytest_pdb._init_pdb = init_pdb
    pytest_pdb._get_pdb_wrapper_class = rank_pdb_class


class _Descriptors:
    """Standard input, output and error: the terminal's while there is a debugger."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._placed: list[tuple[int, int]] = []

    def put_in_place(self, theirs: list[int]) -> None:
        """Put these in place; what stood there is kept."""
        _flush()
        if not self._before:
            self._before = [os.dup(number) for number in range(3)]
        self._placed = [_identity(descriptor) for descriptor in theirs]
        for number, descriptor in enumerate(theirs):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for stream in (sys.stdout, sys.stderr):
            # pytest ends what it says to the user with a line, and turns to its own files.
            if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
                reconfigure(line_buffering=True)

    def give_up(self) -> None:
        """Have what stood there back, except where pytest captures again."""
        before, self._before = self._before, []
        for number, (descriptor, placed) in enumerate(zip(before, self._placed, strict=False)):
            if _identity(number) == placed:
                os.dup2(descriptor, number)
            os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _own_of_user(frame: FrameType) -> FrameType:
    """The innermost frame that is neither ours nor torch's."""
    found: FrameType | None = frame
    while found is not None:
        if found.f_globals.get("__name__", "").split(".")[0] not in ("torch", "pytest_ddp"):
            return found
        found = found.f_back
    return frame


def _pass_by(*args: Any, **kwargs: Any) -> None:
    """A breakpoint on a rank that is not to be stopped."""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
