"""Runs a served process: does what ``multiprocessing.spawn`` does in a new interpreter."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from multiprocessing import parent_process, resource_tracker, spawn
from typing import Any, NoReturn

from torch.utils.data._utils import worker

from pytest_ddp.extensions.adopt.ranks import served_surroundings
from pytest_ddp.extensions.adopt.ranks.served_messages import Inherit, Serve, take_descriptors
from pytest_ddp.extensions.adopt.ranks.served_watch import ServedWatch
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.rank.cleanup import seeding
from pytest_ddp.rank.exits import crash_stacks, exiting
from pytest_ddp.rank.startup.preload import without_collector
from pytest_ddp.system import processes, tempfiles
from pytest_ddp.system.stdlib import os, socket, traceback

_STREAMS = 3


def preload() -> None:
    """Import what every such process needs: torch's part of ``spawn``, and pytest for tests."""
    with without_collector():
        import pytest  # noqa: F401, PLC0415
        import torch.multiprocessing.spawn  # noqa: F401, PLC0415
    _end_loader_workers()


def live(serve: Serve, descriptors: list[int]) -> NoReturn:
    """Run the process object from the pipe; never returns into the frames of the service."""
    try:
        _live(serve, descriptors)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    crash_stacks.exit_now(1)


def _live(serve: Serve, descriptors: list[int]) -> NoReturn:
    own, *streams = descriptors[: 1 + _STREAMS]
    # The sentinel stays open: the kernel closes it when the process ends, which its parent sees.
    data, _sentinel, tracker, *files = descriptors[1 + _STREAMS :]
    stacks, stacks_of_children, page, _trace = map(tempfiles.path_of, files)
    # Standard error belongs to the test: it must not contain more than with spawn.
    crash_stacks.install(stacks, stacks_of_children, native=False)
    served_surroundings.environment(serve.environment)
    served_surroundings.streams(streams)
    os.umask(serve.umask)
    served_surroundings.main_module()
    seeding.unseed()
    processes.watch()
    connection = socket.socket(fileno=own)
    _inherit(Channel(connection))
    _share_tracker(tracker)
    # The peer is now the process that watches, which counts messages from the first one.
    watch = ServedWatch(Channel(connection), page)
    for descriptor in files:
        os.close(descriptor)
    code = _run(data)
    watch.end()
    crash_stacks.exit_now(code)


def _inherit(channel: Channel) -> None:
    """Wait for the descriptors of the data: once they arrive, the pytest process is the parent."""
    last = False
    while not last:
        received = channel.receive()
        if received is None:
            crash_stacks.exit_now(1)
        message, descriptors = received
        assert isinstance(message, Inherit), message
        take_descriptors(descriptors)
        last = message.last


def _share_tracker(descriptor: int) -> None:
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = descriptor


def _run(data: int) -> int:
    code = 1
    try:
        code = spawn._main(data, os.dup(data))
    except BaseException:
        # Unpickling failed; a new interpreter would print the traceback as well.
        sys.excepthook(*sys.exc_info())
    exiting.skip_torch_finalizers()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            AttributeError, ValueError, OSError
        ):  # the test may have replaced it
            stream.flush()
    return code


def _end_loader_workers() -> None:
    """Have workers of a ``DataLoader`` end with their process, even if it ends as they start.

    torch's worker ends when the pid of its parent has changed since it first looked. If its process
    had ended before that look, the worker waits for ever, and so does whoever waits for the end of
    its process, by the sentinel that the worker has inherited (torch 2.13).

    Workers that are forked from now on compare with the pid that multiprocessing knows.
    """
    original: Any = worker.ManagerWatchdog.__init__

    @functools.wraps(original)
    def init(watchdog: Any) -> None:
        original(watchdog)
        if (parent := parent_process()) is not None:
            watchdog.manager_pid = parent.pid

    init.__module__ = original.__module__
    setattr(worker.ManagerWatchdog, "__init__", init)  # noqa: B010 - mypy
