"""Forks processes on request, watches them, and kills them when the pytest process has ended.

multiprocessing's own fork server is the parent of its forks. That breaks a test that waits for a
pid, a process that reads its parent's pid, and ``PR_SET_PDEATHSIG``, with which
``torch.multiprocessing`` ends processes. Here a *stem* process forks the child and ends at once.
The pytest process is the subreaper at that moment, so the kernel makes it the child's parent.
"""

from __future__ import annotations

import contextlib
from typing import NoReturn

from pytest_ddp.extensions.adopt.process_watch import ProcessWatch
from pytest_ddp.extensions.adopt.ranks import served_process
from pytest_ddp.extensions.adopt.ranks.served_messages import (
    BeginWatch,
    Serve,
    Served,
    ServiceReady,
)
from pytest_ddp.extensions.adopt.ranks.served_surroundings import Signals
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import Collected
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.startup import preload, shared_preload, threads
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import gc, os, select, signal


def serve(channel: Channel, parent: int) -> NoReturn:
    """Run the service.

    Args:
        channel: the channel to the pytest process.
        parent: the pid of the pytest process.
    """
    # While this process imports, it does not read the channel, and would miss its parent's end.
    processes.die_with_parent(parent)
    # The service is in the terminal's process group, as its forks must be, so it gets Ctrl-C too.
    signals = Signals.take()
    preload.torch()
    served_process.preload()
    received = channel.receive()
    if received is None:
        crash_stacks.exit_now(0)
    collected, _ = received
    assert isinstance(collected, Collected), collected
    shared_preload.import_shared(collected)
    channel.send(ServiceReady(threads.problem("their service")))
    gc.collect()
    gc.freeze()
    processes.outlive_parent()
    _Service(channel, parent, signals).run()
    crash_stacks.exit_now(0)


class _Service:
    def __init__(self, channel: Channel, parent: int, signals: Signals) -> None:
        self._channel = channel
        self._signals = signals
        self._made: list[int] = []
        """A pidfd of each process that may still run; a pid could have been reused."""
        # Not the channel's end: a process that a test has forked keeps the channel open.
        self._parent = os.pidfd_open(parent)
        self._watch: ProcessWatch | None = None

    def run(self) -> None:
        """Serve until the pytest process has ended."""
        with contextlib.suppress(OSError):
            while self._parent not in (ready := self._wait()):
                if self._channel.fileno() in ready and not self._take_request():
                    break
                if self._watch is not None:
                    self._watch.step(ready)
        for process in self._made:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)

    def _wait(self) -> set[int]:
        """The descriptors with news, once there is one or the watch is due."""
        poll = select.poll()
        known = {self._channel.fileno()} if self._channel.has_message else set()
        due = 0.0 if known else None
        sources = [self._channel.fileno(), self._parent]
        if self._watch is not None:
            sources += self._watch.sources()
            due = self._watch.due_in() if due is None else due
        for source in sources:
            poll.register(source, select.POLLIN)
        return known | {source for source, _ in poll.poll(None if due is None else 1000 * due)}

    def _take_request(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        request, descriptors = received
        if isinstance(request, BeginWatch):
            self._watch = ProcessWatch(request, *descriptors)
            return True
        assert isinstance(request, Serve), request
        self._forget_ended()
        pid = self._make(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        # The child must not be reaped before its pid is sent: the pid could be reused.
        self._made.append(os.pidfd_open(pid))
        self._channel.send(Served(pid))
        return True

    def _make(self, serve: Serve, descriptors: list[int]) -> int:
        reading, writing = os.pipe()
        stem = os.fork()
        if stem == 0:
            child = os.fork()
            if child == 0:
                for descriptor in (reading, writing, self._parent, *self._made):
                    os.close(descriptor)
                self._channel.close()
                if self._watch is not None:
                    self._watch.close()
                self._signals.restore()
                served_process.live(serve, descriptors)
            os.write(writing, str(child).encode())
            crash_stacks.exit_now(0)
        os.close(writing)
        # After the stem is reaped, the kernel has given its child the new parent.
        os.waitpid(stem, 0)
        child = int(os.read(reading, 32))
        os.close(reading)
        return child

    def _forget_ended(self) -> None:
        ended, _, _ = select.select(self._made, [], [], 0)
        for process in ended:
            self._made.remove(process)
            os.close(process)
