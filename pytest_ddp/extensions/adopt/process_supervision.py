"""Supervises served processes: has them watched and judged, and adds to torch's exceptions.

torch reports by exceptions how processes ended; the plugin's diagnosis is added to their texts.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from multiprocessing.process import BaseProcess
from typing import Any

from pytest_ddp.extensions.adopt.judging import EARLY, EARLY_ADVICE, Judge, ends_text
from pytest_ddp.extensions.adopt.popen import ServedPopen
from pytest_ddp.extensions.adopt.spawn_server import SpawnServer
from pytest_ddp.extensions.adopt.watching import ExitDeadline, Watched, Watcher
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.system.stdlib import pickle

_MODULE = "torch.multiprocessing.spawn"
_ELASTIC = "torch/distributed/elastic/"


_process: Any = BaseProcess


class Joins:
    """Wraps ``Process.exitcode``, and ``ProcessContext.join`` once torch has been imported."""

    def __init__(self, judge: Judge, *, checks_exits: bool) -> None:
        self._judge = judge
        self._checks_exits = checks_exits
        self._original: Any = None
        self._exitcode: Any = None

    def install(self) -> None:
        """Install the wrappers; a later call adds those whose module was not imported before."""
        if self._exitcode is None:
            self._exitcode = _process.exitcode
            _process.exitcode = property(self._noted_exitcode)
        module: Any = sys.modules.get(_MODULE)
        if module is not None and self._original is None:
            self._original = module.ProcessContext.join
            module.ProcessContext.join = self._wrapped(module)

    def remove(self) -> None:
        """Restore the originals."""
        if self._exitcode is not None:
            _process.exitcode, self._exitcode = self._exitcode, None
        if self._original is not None:
            module: Any = sys.modules[_MODULE]
            module.ProcessContext.join, self._original = self._original, None

    def _noted_exitcode(self, process: Any) -> int | None:
        code: int | None = self._exitcode.fget(process)
        if code is not None and isinstance(process._popen, ServedPopen):
            process._popen.exit_code_was_read = True
        return code

    def _wrapped(self, module: Any) -> Any:
        original = self._original

        @functools.wraps(original)
        def join(context: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            try:
                done = original(context, *args, **kwargs)
            except module.ProcessException as error:
                self._explain(context, error)
                raise
            # Elastic polls: it calls join again as long as one process has not returned.
            by_elastic = _ELASTIC in sys._getframe(1).f_code.co_filename
            if self._checks_exits and (done or by_elastic):
                self._look_for_early_ends(module, context, by_elastic=by_elastic)
            return done

        return join

    def _explain(self, context: Any, error: Any) -> None:
        known = self._of(context)
        for process in known:
            # The exception reports how they ended.
            process.popen.poll()
            process.is_judged = False
        if not known:
            return
        hang = next((process.hang for process in known if process.hang is not None), None)
        if hang is not None:
            text = self._judge.hang_text(hang, known)
        else:
            failed = context.processes[error.error_index]._popen
            first = [process for process in known if process.popen is failed]
            others = [process for process in known if process.popen is not failed]
            # If the process raised, torch's exception already says more than its exit code.
            ends = ends_text([*(first if hasattr(error, "exit_code") else []), *others])
            text = f"{ends}\n\n{self._judge.explained}" if hasattr(error, "exit_code") else ends
        error.msg = f"{error.msg.rstrip()}\n\n{text}"
        error.args = (error.msg, *error.args[1:])

    def _of(self, context: Any) -> list[Watched]:
        """The watched processes of a context, labelled with torch's names for them."""
        known = []
        for index, process in enumerate(context.processes):
            for watched in self._judge.of([process._popen]):
                watched.label = f"process {index}"
                watched.raised = _raised(context, index)
                known.append(watched)
        return known

    def _look_for_early_ends(self, module: Any, context: Any, *, by_elastic: bool) -> None:
        __tracebackhide__ = True
        processes = self._of(context)
        for index, known in enumerate(processes):
            if known.popen.poll() == 0 and not known.popen.has_returned:
                known.is_judged = by_elastic
                # Elastic logs the exception that is raised here, and ends the others.
                for other in processes if by_elastic else ():
                    other.is_judged = other is known
                ends = ends_text([known])
                text = f"process {index} {EARLY}\n\n{ends}\n\n{EARLY_ADVICE}\n"
                text += self._judge.explained
                raise module.ProcessExitedException(text, index, known.popen.pid, 0)


def _raised(context: Any, index: int) -> str:
    """The last line of the traceback that torch keeps of a process; empty if it did not raise.

    Torch quotes one process: the first to end, which may have raised because another one had.
    """
    with contextlib.suppress(AttributeError, IndexError, OSError, EOFError, pickle.UnpicklingError):
        with open(context.error_files[index], "rb") as file:
            lines = str(pickle.load(file)).strip().splitlines()
        return lines[-1] if lines else ""
    return ""


_WITH_OWNERS = ("concurrent.", "multiprocessing.")
"""Modules of targets whose processes a pool or a manager cleans up."""


class ProcessSupervision:
    """Has the watcher, the joins and the judge of one session."""

    def __init__(self, timeout: float, docs_url: str, *, checks_exits: bool) -> None:
        self._watcher = Watcher(timeout)
        self.judge = Judge(self._watcher.read_reports, checks_exits=checks_exits, docs_url=docs_url)
        self.joins = Joins(self.judge, checks_exits=checks_exits)

    def add(
        self,
        popen: ServedPopen,
        channel: Channel,
        servers: list[SpawnServer],
        process: Any,
        nodeid: str,
        deadline: ExitDeadline,
    ) -> None:
        """Supervise a process that this test has just started.

        Args:
            popen: the process.
            channel: the channel to it.
            servers: the services, one of which watches it.
            process: the ``multiprocessing.Process``.
            nodeid: the test.
            deadline: when its exit is judged.
        """
        module = getattr(getattr(process, "_target", None), "__module__", None) or ""
        judged = not module.startswith(_WITH_OWNERS)
        watched = Watched(popen, nodeid, deadline, judged=judged)
        self.judge.add(watched)
        self.joins.install()
        self._watcher.add(watched, channel, servers)
