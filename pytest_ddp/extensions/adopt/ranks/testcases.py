"""torch's multi-process test cases on ranks: each rank runs what a spawned process would run.

The main process of a ``MultiProcessTestCase`` spawns others in ``setUp`` and waits for their exit
codes in place of the test; that of a ``MultiProcContinuousTest`` does so once for a class, and
sends them names of tests. Here each rank is both: no process is spawned, and in place of the wait
each rank does what a spawned process would do, on its own instance.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import unittest
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import pytest
from torch.distributed import destroy_process_group

from pytest_ddp.extensions.adopt.ranks import harness_environment
from pytest_ddp.fixture import DdpError, current
from pytest_ddp.rank.groups import connections
from pytest_ddp.rank.groups.default_group import groups
from pytest_ddp.system.stdlib import os, signal, tempfile

_HARNESS = "torch.testing._internal.common_distributed"


class TestCases:
    """A pytest plugin that runs the harness on ranks, once it is imported."""

    def __init__(self) -> None:
        self._done = False

    def pytest_ddp_rank_begins(self, announce_end: Callable[[tuple[int, ...], bool], None]) -> None:
        _announce_by(announce_end)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> None:
        """Patch the harness once it is imported, before instances bind its functions."""
        harness: Any = sys.modules.get(_HARNESS)
        if self._done or harness is None:
            return
        self._done = True
        each: Any = harness.MultiProcessTestCase
        each._spawn_processes = each._start_processes = _start_no_process
        each._join_processes, each.run_test = _run_in_place, _run_test
        once: Any = harness.MultiProcContinuousTest
        once._spawn_processes = classmethod(_start_class)
        once._worker_run_main_wait = _run_of_class

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        """Restore the environment, in which ``setUp`` sets variables for its processes.

        Raises:
            RuntimeError: the test has not failed or skipped, and has not run.
        """
        harness: Any = sys.modules.get(_HARNESS)
        cls = getattr(item, "cls", None)
        if harness is None or not isinstance(cls, type):
            return (yield)
        if not issubclass(cls, (harness.MultiProcessTestCase, harness.MultiProcContinuousTest)):
            return (yield)
        _ran.clear()
        with harness_environment.restored():
            result = yield
        # pytest stores exceptions that unittest has caught in _excinfo.
        if not _ran and not getattr(item, "_excinfo", None):
            raise RuntimeError("the harness has not run the test: is a part of it replaced?")
        return result


_ran: list[str] = []
"""Names of the tests that were run since a call began."""


# ------------------------------------------------------------------ MultiProcessTestCase


class _Pipe:
    """The pipe for the reason of a failure, if a class has its own ``run_test``."""

    said = ""

    def send(self, text: object) -> None:
        self.said = str(text)

    def close(self) -> None:
        """Does nothing, as the other end has no reader."""


def _start_no_process(case: Any, *processes: object) -> None:
    case.processes = []


def _run_in_place(case: Any, function: Any) -> None:
    ddp, skip = current(), None
    file_name = ddp.broadcast(case.file_name if ddp.rank == 0 else None)
    try:
        with harness_environment.inherited(ddp):
            _run_as_spawned(ddp.rank, case, function, file_name)
    except unittest.SkipTest as skipped:
        skip = skipped
    # The main process tears down only after all others have ended.
    with contextlib.suppress(DdpError):  # a failed rank reports its failure itself
        ddp.barrier()
    if skip is not None:
        raise skip


def _run_as_spawned(rank: int, case: Any, function: Any, file_name: str) -> None:
    expected = case.special_return_code_checks.get(function, 0)
    if function in case.skip_return_code_checks:
        with _announced((case.TEST_ERROR_EXIT_CODE,), others=True):
            code = _code_of(rank, case, file_name)
        if code != case.TEST_ERROR_EXIT_CODE:
            return
    elif expected:
        with _announced((expected,)):
            code = _code_of(rank, case, file_name)
    else:
        code = _code_of(rank, case, file_name)
    # The harness checks the expected code of rank 0 only; a failure of another rank is no pass.
    if code != expected and (code or rank == 0):
        raise AssertionError(f"exit code {code}, not {expected}{_words(expected)}")


def _code_of(rank: int, case: Any, file_name: str) -> int:
    """Run what a spawned process would run, and return its exit code."""
    pipe, name = _Pipe(), case._current_test_name()
    fake = getattr(case, "fake_pg", False)
    try:
        with _skipping():
            _ran.append(name)
            type(case)._run(rank, name, file_name, pipe, fake_pg=fake)
    except SystemExit as ended:
        if pipe.said:
            raise RuntimeError(pipe.said) from None
        # As the interpreter: an exit value that is no number is code 1.
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _words(code: int) -> str:
    if code >= 0:
        return ""
    names = {number.value: number.name for number in signal.Signals}
    return f": the test was to die of {names.get(-code, f'signal {-code}')}"


def _run_test(case: Any, test_name: str, parent_pipe: object) -> None:
    """Do as the harness's own, but raise exceptions, which that turns into exit codes."""
    importlib.import_module("torch.testing._internal.common_utils").set_rng_seed()
    with connections.marking():
        getattr(case, test_name)()
    if case.destroy_pg_upon_exit and (given_up := groups()):
        connections.wait_for_peers(given_up)
        destroy_process_group()


@contextlib.contextmanager
def _skipping() -> Iterator[None]:
    """Turn exit codes that mean a skip to the harness into skips."""
    try:
        yield
    except SystemExit as ended:
        skips = sys.modules[_HARNESS].TEST_SKIPS.values()
        why = next((skip.message for skip in skips if skip.exit_code == ended.code), None)
        if why is None:
            raise
        raise unittest.SkipTest(why) from None


# ------------------------------------------------------------------ MultiProcContinuousTest


class _Queue:
    """The queue that sends the names of tests to a class's processes; None is the end."""

    def put(self, test: str | None) -> None:
        if test is None and groups():
            destroy_process_group()


def _start_class(cls: Any, world_size: int) -> None:
    ddp = current()
    made = None
    if ddp.rank == 0:
        descriptor, made = tempfile.mkstemp()
        os.close(descriptor)
    cls.rdvz_file = ddp.broadcast(made)
    cls.rank, cls.processes, cls.completion_queues = ddp.rank, [], []
    cls.task_queues = [_Queue()]
    harness_environment.share(ddp)
    with _skipping():
        cls._init_pg(ddp.rank, world_size, cls.rdvz_file)
    # No rank may destroy the group while another one still connects.
    ddp.barrier()


def _run_of_class(case: Any, function: Any) -> Any:
    def run(case: Any) -> None:
        if case.rank == case.MAIN_PROCESS_RANK:
            with _skipping():
                _ran.append(case.id())
                type(case)._run_test_given_id(case.id())
        else:
            function()

    return MethodType(run, case)


# ------------------------------------------------------------------ announced ends

_announce: Callable[[tuple[int, ...], bool], None] | None = None
"""Sends to the controller the exit codes with which a test ends its own process on purpose."""


def _announce_by(announce: Callable[[tuple[int, ...], bool], None]) -> None:
    """Set, for the life of the rank, the function that sends announced codes to the controller."""
    global _announce
    _announce = announce


@contextlib.contextmanager
def _announced(codes: tuple[int, ...], *, others: bool = False) -> Iterator[None]:
    """In the block the process may end with one of these codes, or with any code but these.

    Args:
        codes: exit codes as ``subprocess`` has them: negative for signals.
        others: whether the process may end with any code but these.
    """
    assert _announce is not None, "no rank"
    _announce(codes, others)
    try:
        yield
    finally:
        _announce((), False)
