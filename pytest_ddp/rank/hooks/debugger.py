"""pdb in a rank: pytest's own, on the terminal of the pytest process for each prompt."""

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
from pytest_ddp.rank.groups.default_group import groups
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.startup.pytest_config import DEBUG
from pytest_ddp.system import editors
from pytest_ddp.system.frames import current_frames
from pytest_ddp.system.stdlib import os, threading

_LONG = timedelta(days=1)
"""Timeout of process groups while a user debugs: long enough for any debugging session."""
_NO_TEST = "no test is running, and the terminal is lent to tests only"


class PromptPlace(NamedTuple):
    """The rank's place in the world, for prompts and messages."""

    rank: int
    world_size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


class TerminalAccess(NamedTuple):
    """Functions of the link that request the terminal and return it."""

    want: Callable[[], tuple[str | None, list[int]]]
    """Returns a refusal, or the descriptors of standard input, output and error."""
    leave: Callable[[bool, bool], None]
    """Takes two flags: the user makes a single step; the user ends the session."""


class RankDebugger:
    """A pytest plugin: pytest's pdb, however it is started, requests the terminal first."""

    def __init__(
        self,
        config: pytest.Config,
        operations: Operations,
        access: TerminalAccess,
        place: PromptPlace,
        history: str,
    ) -> None:
        """
        Args:
            config: of the rank's session.
            operations: calls this object with each new process group.
            access: how to get the terminal.
            place: for the prompt.
            history: file for the lines that users enter on any rank; empty for none.
        """
        self._config = config
        self._captured = _Captured(config.pluginmanager.getplugin("capturemanager"))
        self._ask, self._place = access, place
        self._options = config.stash[DEBUG]
        self._terminal = _Descriptors()
        self._history = history
        self._in_test = self._holds = self._continued = False
        self._peers_wait = False
        """Whether the other ranks wait in torch.distributed.breakpoint, until the user's first
        command here."""
        self._lifts = False
        self._timeouts: list[tuple[Any, timedelta]] = []
        self._lifting = threading.RLock()
        """Both the test and the thread of the link lift timeouts, often at the same time."""
        operations.on_new_group.append(self._greet)
        self._skipped: dict[tuple[str, int], int] = {}
        _patch_pdb(self)
        dist.breakpoint = self._breakpoint
        if self._options.rank not in (None, place.rank):
            pytest.set_trace = pdb.set_trace = _ignore_breakpoint
        if self._options.trace and place.rank == (self._options.rank or 0):
            config.pluginmanager.register(PdbTrace(), "pdbtrace")

    def begin(self) -> None:
        """Begin a test."""
        self._in_test = True
        if editors.is_attached():
            self.lift_timeouts()

    def end(self) -> None:
        """End the test: return the terminal, and restore the groups' timeouts."""
        self._in_test = False
        if self._holds:
            self.leave(quits=False)
        self._terminal.give_up()
        self._captured.is_suspended = False
        with self._lifting:
            for group, timeout in self._timeouts:
                with contextlib.suppress(RuntimeError, ValueError):  # the test has destroyed it
                    _set_pg_timeout(timeout, group)
            self._timeouts.clear()
            self._lifts = False

    # ------------------------------------------------------------------ the terminal

    def take(self) -> None:
        """Get the terminal; waits until another rank returns it.

        Raises:
            DdpError: the terminal was refused.
        """
        if self._holds:
            return
        self._captured.suspend()
        refusal, descriptors = self._ask.want() if self._in_test else (_NO_TEST, [])
        if refusal is not None:
            self._captured.resume()
            raise DdpError(f"{self._place} cannot open a debugger: {refusal}")
        self._terminal.put_in_place(descriptors)
        self.lift_timeouts()
        self._holds, self._continued = True, False

    def leave(self, *, quits: bool) -> None:
        """Return the terminal after a prompt, as the rank goes on."""
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
        """Lift the timeouts of this rank's groups, existing and new ones, until the test ends.

        Another rank may open a debugger when the test has ended here.
        """
        with self._lifting:
            if not self._in_test:
                return
            self._lifts = True
            known = [group for group, _ in self._timeouts]
            for group in groups():
                if group not in known:
                    self._lift(group)

    def _greet(self, group: Any) -> None:
        with self._lifting:
            if self._lifts:
                self._lift(group)

    def _lift(self, group: Any) -> None:
        with contextlib.suppress(AttributeError, RuntimeError):  # a backend without a timeout
            backend = group._get_backend(group._device_types[0])
            self._timeouts.append((group, backend.options._timeout))
            _set_pg_timeout(_LONG, group)

    @contextlib.contextmanager
    def prompting(self) -> Iterator[None]:
        """Hold the terminal during a prompt."""
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
        # At a prompt, keys that send signals are meant for the rank; else for the session.
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
        if not self._options.post_mortem or not self._in_test:
            return
        try:
            self.take()
        except DdpError:
            return  # the controller reports the refusal, once for all ranks
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
        """Open a prompt, on a thread beside it, at the place where the main thread is stuck."""
        main = threading.main_thread().ident
        frame = _own_of_user(current_frames()[main])  # type: ignore[index]
        with contextlib.suppress(pytest.exit.Exception), self.prompting():
            debugger = _new_pdb("of a hang")
            debugger.reset()
            debugger.interaction(frame, None)
            if debugger.quitting:
                pytest.exit("Quitting debugger")

    def _breakpoint(self, rank: int = 0, skip: int = 0, timeout_s: int | None = 3600) -> None:
        """torch.distributed.breakpoint; the other ranks wait without using a process group."""
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
    """pytest's capture manager, suspended once from the first prompt to the user's ``c``.

    pytest's pdb suspends it again after us. Suspended twice under ``capsys``, pytest 9.2 makes
    ``sys.stdout`` write to its own file.
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


def _patch_pdb(debugger: RankDebugger) -> None:
    """Make pytest's pdb request the terminal before its header and before each prompt."""
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
    """Standard input, output and error, which are the terminal's while a debugger is open."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._placed: list[tuple[int, int]] = []

    def put_in_place(self, theirs: list[int]) -> None:
        """Replace the three descriptors, and keep the original ones."""
        _flush()
        if not self._before:
            self._before = [os.dup(number) for number in range(3)]
        self._placed = [_identity(descriptor) for descriptor in theirs]
        for number, descriptor in enumerate(theirs):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for stream in (sys.stdout, sys.stderr):
            # pytest ends its header with a newline, and switches to its own files after it.
            if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
                reconfigure(line_buffering=True)

    def give_up(self) -> None:
        """Restore the original descriptors, except where pytest captures again."""
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


def _ignore_breakpoint(*args: Any, **kwargs: Any) -> None:
    """Replaces ``set_trace`` on a rank that must not stop."""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
